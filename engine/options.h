/* SPDX-License-Identifier: MIT */
/* options.h - settings by name, inside the library.  The public side (ft_options, ft_config_set, ft_config_get) is in
 * ft/ft.h.  No state but constant tables: any thread, as long as nobody writes the same struct ft_config. */
#ifndef FT_OPTIONS_H
#define FT_OPTIONS_H

#include <stdbool.h>
#include <ft/ft.h>

/* options_find - the setting named @name, or NULL. */
const struct ft_option *options_find(const char *name);

/* options_check - can a session be opened with @cfg?  Refuses, with a sentence, what is missing, out of range (fields
 * may have been written without ft_config_set) or contradicts another setting.  0, -EINVAL or -ERANGE. */
int options_check(const struct ft_config *cfg, struct ft_error *err);

/* options_set_live - for ft_session_set: change @name in @cfg, the session's own copy, if that may change while it
 * runs and the whole still passes options_check(); otherwise @cfg is as before.  -EPERM: known, but not live. */
int options_set_live(struct ft_config *cfg, const char *name, const char *value, struct ft_error *err);

#endif
