/* SPDX-License-Identifier: MIT */
/* log.h - the library's log lines; they go to the callback of ft_log_set(), or nowhere. */
#ifndef FT_BASE_LOG_H
#define FT_BASE_LOG_H

#include <ft/ft.h>
#include "err.h"

void log_line(enum ft_log_level level, const char *module, const char *fmt, ...) FT_PRINTF(3, 4);

#define log_error(module, ...) log_line(FT_LOG_ERROR, module, __VA_ARGS__)
#define log_warn(module, ...) log_line(FT_LOG_WARN, module, __VA_ARGS__)
#define log_info(module, ...) log_line(FT_LOG_INFO, module, __VA_ARGS__)
#define log_debug(module, ...) log_line(FT_LOG_DEBUG, module, __VA_ARGS__)

#endif
