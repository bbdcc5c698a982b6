/* SPDX-License-Identifier: MIT */
/* statefile.c - see statefile.h.
 * The order of the steps is what makes a write whole: the new contents are on the disk before they have the name, and the name is before
 * statefile_write() returns. */
#include "statefile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "digest.h"
#include "err.h"
#include "faultpoint.h"

#define PATH_SIZE (FT_STATE_FILE_MAX + 8u)
#define CHECKSUM "checksum="
#define NOT_KNOWN                                                                                                      \
	"so it is not known whether the machine may run here: find out which side runs it, then remove the file"

static const char *const word_names[SAYS_COUNT] = {
	[SAYS_NOTHING] = "nothing", [SAYS_RUNNING] = "running",     [SAYS_PROTECTED] = "protected",
	[SAYS_STOPPED] = "stopped", [SAYS_FENCED] = "fenced",       [SAYS_JOINED] = "joined",
	[SAYS_STANDBY] = "standby", [SAYS_PROMOTING] = "promoting", [SAYS_REFUSED] = "refused",
};

const char *statefile_word_name(enum statefile_word word)
{
	return word < SAYS_COUNT ? word_names[word] : "?";
}

bool statefile_epoch_exact(enum statefile_word word)
{
	return word != SAYS_PROTECTED && word != SAYS_STANDBY && word != SAYS_JOINED;
}

/* ---- contents ---- */

/* @f as text into @buf of STATEFILE_MAX octets; returns its length. */
static size_t compose(const struct statefile *f, char *buf)
{
	char session[2 * sizeof(f->session) + 1];
	int n;

	for (size_t i = 0; i < sizeof(f->session); i++)
		snprintf(session + 2 * i, 3, "%02x", f->session[i]);
	n = snprintf(buf, STATEFILE_MAX,
		     "ft-state=%u\nname=%s\nrole=%s\nstate=%s\ngeneration=%" PRIu64 "\nsession=%s\n%s=%" PRIu64 "\n",
		     STATEFILE_VERSION, f->name, f->role == FT_ROLE_PRIMARY ? "primary" : "secondary",
		     word_names[f->word], f->generation, session,
		     statefile_epoch_exact(f->word) ? "epoch" : "epoch-at-least", f->epoch);
	n += snprintf(buf + n, STATEFILE_MAX - (size_t)n, CHECKSUM "%016" PRIx64 "\n", digest_state(buf, (size_t)n));
	return (size_t)n;
}

/* The value of the line that begins with @key, and *@at behind that line; NULL if the line is another. */
static char *value_of(char **at, const char *key)
{
	char *value, *end;

	if (strncmp(*at, key, strlen(key)) != 0)
		return NULL;
	value = *at + strlen(key);
	end = strchr(value, '\n');
	if (!end)
		return NULL;
	*end = '\0';
	*at = end + 1;
	return value;
}

static bool parse_word(const char *text, enum statefile_word *out)
{
	for (enum statefile_word w = SAYS_RUNNING; text && w < SAYS_COUNT; w++)
		if (strcmp(text, word_names[w]) == 0) {
			*out = w;
			return true;
		}
	return false;
}

static bool parse_session(const char *text, uint8_t session[16])
{
	if (!text || strlen(text) != 32)
		return false;
	for (size_t i = 0; i < 16; i++)
		if (sscanf(text + 2 * i, "%2hhx", &session[i]) != 1)
			return false;
	return true;
}

static bool parse_number(const char *text, uint64_t *out)
{
	return text && sscanf(text, "%" SCNu64, out) == 1;
}

/* Takes more than compose() makes; whoever calls composes it again, and compares. */
static bool parse(char *text, struct statefile *out)
{
	char *at = text, *name, *role;

	if (!value_of(&at, "ft-state="))
		return false;
	name = value_of(&at, "name=");
	if (!name || strlen(name) >= sizeof(out->name))
		return false;
	memcpy(out->name, name, strlen(name) + 1);
	role = value_of(&at, "role=");
	out->role = role && strcmp(role, "primary") == 0 ? FT_ROLE_PRIMARY : FT_ROLE_SECONDARY;
	return parse_word(value_of(&at, "state="), &out->word) &&
	       parse_number(value_of(&at, "generation="), &out->generation) &&
	       parse_session(value_of(&at, "session="), out->session) &&
	       parse_number(value_of(&at, statefile_epoch_exact(out->word) ? "epoch=" : "epoch-at-least="),
			    &out->epoch);
}

static int examine(const char *path, const char *text, size_t len, struct statefile *out, struct ft_error *err)
{
	char copy[STATEFILE_MAX + 1], again[STATEFILE_MAX];
	unsigned version;
	char end;

	if (sscanf(text, "ft-state=%9u%c", &version, &end) == 2 && end == '\n' && version > STATEFILE_VERSION)
		return err_set(err, -EPROTONOSUPPORT,
			       "state file %s: of version %u, this program knows %u: use a newer one", path, version,
			       STATEFILE_VERSION);
	memcpy(copy, text, len + 1);
	*out = (struct statefile){ 0 };
	if (parse(copy, out) && compose(out, again) == len && memcmp(again, text, len) == 0)
		return 0;
	*out = (struct statefile){ 0 };
	return err_set(err, -EBADMSG, "state file %s: damaged, or not one of ft's, " NOT_KNOWN, path);
}

/* ---- reading ---- */

/* The whole of @fd, up to @size octets; negative errno. */
static ssize_t read_all(int fd, char *buf, size_t size)
{
	size_t len = 0;
	ssize_t n;

	do {
		n = read(fd, buf + len, size - len);
		len += n > 0 ? (size_t)n : 0;
	} while ((n > 0 && len < size) || (n < 0 && errno == EINTR));
	return n < 0 ? -errno : (ssize_t)len;
}

int statefile_read(const char *path, struct statefile *out, struct ft_error *err)
{
	char text[STATEFILE_MAX + 1];
	int fd = FT_FAULT("statefile/read") ? faultpoint_errno(EIO)
					    : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	ssize_t len;

	*out = (struct statefile){ 0 };
	if (fd < 0 && errno == ENOENT)
		return 0;
	len = fd < 0 ? -errno : read_all(fd, text, sizeof(text));
	if (fd >= 0)
		close(fd);
	if (len < 0)
		return err_sys(err, (int)len, "state file %s: cannot be read, " NOT_KNOWN, path);
	if ((size_t)len == sizeof(text))
		len--; /* longer than any: it is not composed again as it is */
	text[len] = '\0';
	return examine(path, text, (size_t)len, out, err);
}

/* ---- writing ---- */

static int write_all(int fd, const char *buf, size_t len)
{
	ssize_t n;

	while (len) {
		n = FT_FAULT("statefile/write") ? faultpoint_errno(ENOSPC) : write(fd, buf, len);
		if (n < 0 && errno != EINTR)
			return -errno;
		buf += n > 0 ? n : 0;
		len -= n > 0 ? (size_t)n : 0;
	}
	return 0;
}

static int make_stable(int fd)
{
	int r = FT_FAULT("statefile/fsync") ? faultpoint_errno(EIO) : fsync(fd);

	return r ? -errno : 0;
}

/* The new contents beside the old ones, on the disk when this returns 0. */
static int write_beside(int folder, const char *name, const char *text, size_t len)
{
	int fd = FT_FAULT("statefile/open")
			 ? faultpoint_errno(EROFS)
			 : openat(folder, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	int r;

	if (fd < 0)
		return -errno;
	r = write_all(fd, text, len);
	if (!r)
		r = make_stable(fd);
	if (close(fd) && !r)
		r = -errno;
	return r;
}

static int replace(int folder, const char *new_name, const char *name)
{
	int r = FT_FAULT("statefile/rename") ? faultpoint_errno(EIO) : renameat(folder, new_name, folder, name);

	return r ? -errno : make_stable(folder);
}

/* @path in two: its folder into @folder; returns what is behind. */
static const char *split(const char *path, char folder[PATH_SIZE])
{
	const char *slash = strrchr(path, '/');

	if (!slash)
		snprintf(folder, PATH_SIZE, ".");
	else
		snprintf(folder, PATH_SIZE, "%.*s", slash == path ? 1 : (int)(slash - path), path);
	return slash ? slash + 1 : path;
}

int statefile_write(const char *path, const struct statefile *f, struct ft_error *err)
{
	char folder_path[PATH_SIZE], new_name[PATH_SIZE], text[STATEFILE_MAX];
	const char *name = split(path, folder_path);
	size_t len = compose(f, text);
	int folder = FT_FAULT("statefile/folder") ? faultpoint_errno(ENOENT)
						  : open(folder_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r;

	if (folder < 0)
		return err_sys(err, -errno, "state file %s: its folder cannot be opened", path);
	snprintf(new_name, sizeof(new_name), "%s.new", name);
	r = write_beside(folder, new_name, text, len);
	if (!r)
		r = replace(folder, new_name, name);
	if (r)
		unlinkat(folder, new_name, 0);
	close(folder);
	return r ? err_sys(err, r, "state file %s: cannot be written", path) : 0;
}
