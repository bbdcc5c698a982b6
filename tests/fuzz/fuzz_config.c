/* SPDX-License-Identifier: MIT */
/* fuzz_config.c - config files: whatever stands in one, reading it ends with settings that a table's ranges allow, or with
 * a sentence that names the file. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "options.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
	if (!holds)
		__builtin_trap();
}

static int set(void *user, const char *key, const char *value, struct ft_error *err)
{
	return ft_config_set(user, key, value, err);
}

static void read_as(const char *text, const char *section)
{
	struct ft_config cfg;
	struct ft_error err = { 0 };
	const char *used = "unset";
	int r;

	ft_config_init(&cfg, FT_ROLE_PRIMARY);
	r = config_read_string("FILE", text, section, set, &cfg, &used, &err);
	must(r == err.code && r <= 0);
	must(r ? strncmp(err.msg, "FILE:", 5) == 0 && strlen(err.msg) > 8 : !used || *used);
	must(!section || r || !used || strcmp(used, section) == 0);
	cfg.peer = "h:1"; /* what the text cannot be blamed for */
	cfg.record = "r";
	cfg.pause_max_ms = cfg.sync_pause_ms;
	cfg.rdma_pin_budget = 0;
	must(cfg.sync_pause_ms < 10 || options_check(&cfg, &err) == 0);
	config_forget();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);

	if (!text)
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';
	read_as(text, NULL);
	read_as(text, "a");
	free(text);
	return 0;
}
