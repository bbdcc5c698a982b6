/* SPDX-License-Identifier: MIT */
/* test_config.c - INI files: which keys are handed out, in which order, and what is said about mistakes. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"

static char got[256];

static int note(void *user, const char *key, const char *value, struct ft_error *err)
{
	if (strcmp(key, "bad") == 0) {
		snprintf(err->msg, sizeof(err->msg), "bad: '%s' is not good", value);
		return err->code = -EINVAL;
	}
	cr_expect_eq(user, got);
	snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s=%s;", key, value);
	return 0;
}

static int read_text(const char *text, const char *section, const char **used, struct ft_error *err)
{
	got[0] = '\0';
	return config_read_string("file", text, section, note, got, used, err);
}

static void expect(const char *text, const char *section, const char *keys, const char *used_section)
{
	struct ft_error err = { 0 };
	const char *used = "unset";

	cr_expect_eq(read_text(text, section, &used, &err), 0, "%s", err.msg);
	cr_expect_str_eq(got, keys, "%s", got);
	if (used_section)
		cr_expect_str_eq(used, used_section);
	else
		cr_expect_null(used);
}

static void refused(const char *text, const char *section, const char *sentence)
{
	struct ft_error err = { 0 };
	const char *used;

	cr_expect_lt(read_text(text, section, &used, &err), 0, "%s", sentence);
	cr_expect_lt(err.code, 0);
	cr_expect_str_eq(err.msg, sentence, "%s", err.msg);
}

Test(config, defaults_come_first_wherever_they_stand)
{
	expect("[a]\nx = 1\n[defaults]\nx = 0\ny=2\n", "a", "x=0;y=2;x=1;", "a");
	expect("[a]\nx = 1\n[b]\nx = 2\n[a]\nz=3\n", "a", "x=1;z=3;", "a");
}

Test(config, section_by_itself)
{
	expect("[defaults]\nx=1\n[only]\ny=2\n", NULL, "x=1;y=2;", "only");
	expect("[only]\n", NULL, "", "only");
	expect("[defaults]\nx=1\n", NULL, "x=1;", NULL);
	expect("[defaults]\nx=1\n", "any", "x=1;", NULL);
	expect("", NULL, "", NULL);
	refused("[a]\n[b]\n", NULL, "file: which machine? --name NAME says it; there is a, b");
	refused("[a]\nx=1\n[b]\n", "c", "file: no section [c]; there is a, b");
}

Test(config, comments_blanks_and_values)
{
	expect("# c\n ; c\n\n[a]\n  x  =  a b ; c = d  \n\ty: e\n", "a", "x=a b ; c = d;y=e;", "a");
	expect("[a]\nx =\n", "a", "x=;", "a");
	expect("[a]\r\nx = 1\r\n", "a", "x=1;", "a");
	expect("[a]\nx = 1", "a", "x=1;", "a");
	expect("\xEF\xBB\xBF[a]\nx = 1", "a", "x=1;", "a");
}

Test(config, mistakes_name_the_line)
{
	refused("[a]\nx = 1\nnonsense\n", "a", "file:3: neither [SECTION] nor KEY = VALUE nor a comment");
	refused("x = 1\n[a]\n", "a", "file:1: x: stands outside of a section; begin with [defaults] or [NAME]");
	refused("[a]\nx=1\nbad = 7\ny = 2\n", "a", "file:3: bad: '7' is not good");
	cr_expect_str_eq(got, "x=1;", "nothing is handed out behind a mistake");
	refused("[a\nx=1\n", "a", "file:1: neither [SECTION] nor KEY = VALUE nor a comment");
	refused("[]\nx=1\n", "a", "file:1: a section's name has 1 to 127 characters");
	expect("[a]\nx=1\n[b]\nbad = 7\n", "a", "x=1;", "a"); /* keys of other machines are their business */
}

/* inih by itself would cut values at 200 octets and section names at 49. */
Test(config, long_lines)
{
	static char text[80000], value[70000];
	struct ft_error err = { 0 };
	const char *used;
	char name[128];

	memset(name, 'n', 127);
	name[127] = '\0';
	memset(value, 'v', 3000);
	snprintf(text, sizeof(text), "[%s]\nx = %s\n", name, value);
	cr_assert_eq(config_read_string("file", text, name, note, got, &used, &err), 0, "%s", err.msg);
	cr_expect_str_eq(used, name);
	cr_expect_eq(strlen(got), sizeof(got) - 1); /* cut by this test, not by the reader */
	memset(value, 'v', 66000);
	snprintf(text, sizeof(text), "[a]\nx = %s\n", value);
	refused(text, "a", "file:2: line of more than 65535 octets");
}

static int keep(void *user, const char *key, const char *value, struct ft_error *err)
{
	(void)key;
	(void)err;
	*(const char **)user = value;
	return 0;
}

Test(config, files)
{
	char path[] = "/tmp/ft-test-config-XXXXXX";
	int fd = mkstemp(path);
	const char *used, *value = NULL;
	struct ft_error err = { 0 };

	cr_assert_eq(write(fd, "[a]\nx = kept\n", 13), 13);
	cr_expect_eq(config_read(path, "a", keep, &value, &used, &err), 0, "%s", err.msg);
	cr_expect_str_eq(value, "kept");
	cr_assert_eq(write(fd, "\0", 1), 1);
	cr_expect_eq(config_read(path, "a", keep, &value, &used, &err), -EILSEQ);
	cr_assert_eq(ftruncate(fd, 2 << 20), 0);
	cr_expect_lt(config_read(path, "a", keep, &value, &used, &err), 0);
	cr_expect(strstr(err.msg, path), "%s", err.msg);
	cr_expect_eq(config_read("/tmp", "a", keep, &value, &used, &err), -EIO);
	cr_expect_eq(config_read("/nonexistent", "a", keep, &value, &used, &err), -ENOENT);
	close(fd);
	unlink(path);
}
