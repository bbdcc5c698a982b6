/* SPDX-License-Identifier: MIT */
/* config.h - INI files: [defaults] for every machine, [NAME] for one; keys are the option names of the command line.
 *
 *	[defaults]
 *	interval = 25
 *	[web1]
 *	peer = standby.example:7000
 *
 * Main thread.  Texts that were read live until config_forget(), which programs never call. */
#ifndef FT_TOOLS_CONFIG_H
#define FT_TOOLS_CONFIG_H

#include <ft/ft.h>

/* Takes one key; 0, or a negative errno with a sentence that says what would be right. */
typedef int config_set(void *user, const char *key, const char *value, struct ft_error *err);

/* config_read - hand the keys of [defaults] and then those of [@section] of @path to @set, wherever they stand.  @section
 * NULL: the only other section, if there is one; several are an error that lists them.  *@used gets the section's name
 * (NULL: there is only [defaults]).  A section that is not there is an error if there are others.  Errors name file and line; the first one ends it. */
FT_MUST int config_read(const char *path, const char *section, config_set *set, void *user, const char **used,
			struct ft_error *err);

/* config_read_string - the same from text; @path is what errors call it. */
FT_MUST int config_read_string(const char *path, const char *text, const char *section, config_set *set, void *user,
			       const char **used, struct ft_error *err);

/* config_forget - free the texts of all files that were read. */
void config_forget(void);

#endif
