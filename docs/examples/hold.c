/* SPDX-License-Identifier: MIT */
/* hold.c - libft's queue of held output alone, without a session: for who makes copies of a machine in a way of his own.
 * What the machine sends is held into epoch n; a copy of n that is safe lets out what was sent up to n.
 *	hold
 * prints what leaves, and when; exit status 0 if that is as it should be. */
#include <ft/ft.h>
#include <stdio.h>
#include <string.h>

static char left[256]; /* what the outside has got */

static size_t emit(void *user, const void *buf, size_t len)
{
	(void)user;
	if (len >= sizeof(left) - strlen(left))
		return 0; /* no room: offered again at ft_output_kick() */
	strncat(left, buf, len);
	return len;
}

static int send_text(struct ft_output *out, const char *text)
{
	return ft_output_write(out, text, strlen(text)); /* -ENOSPC at the cap: end the epoch, or drop it */
}

/* A point in the machine's life where one copy ends and the next begins; the machine stands still. */
static void end_epoch(struct ft_output *out, uint64_t epoch)
{
	ft_output_cut(out, epoch);
}

/* The copy is safe, and all before it are. */
static void copy_is_safe(struct ft_output *out, uint64_t epoch)
{
	ft_output_release(out, epoch);
	printf("epochs up to %u are safe: '%s' has left, %u octets are held\n", (unsigned)epoch, left,
	       (unsigned)ft_output_held(out));
}

static int story(struct ft_output *out)
{
	int r = send_text(out, "boot ");

	end_epoch(out, 0); /* from here on it is held */
	r |= send_text(out, "one ");
	end_epoch(out, 1);
	r |= send_text(out, "two ");
	end_epoch(out, 2);
	r |= send_text(out, "three ");
	if (r || strcmp(left, "boot ") != 0)
		return 1;
	copy_is_safe(out, 1);
	if (strcmp(left, "boot one ") != 0)
		return 1;
	copy_is_safe(out, 2);
	if (strcmp(left, "boot one two ") != 0 || ft_output_held(out) != strlen("three "))
		return 1;
	ft_output_release(out, UINT64_MAX); /* no copies are made any more: hold nothing */
	return strcmp(left, "boot one two three ") != 0;
}

int main(void)
{
	struct ft_output *out;
	int r = ft_output_open(&out, 4096, emit, NULL);

	if (r)
		return 1;
	r = story(out);
	ft_output_close(out);
	printf("%s\n", r ? "WRONG" : "all in its order");
	return r;
}
