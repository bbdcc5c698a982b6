/* SPDX-License-Identifier: MIT */
/* test_output.c - output held by epoch: nothing leaves early, nothing is lost, order is kept. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <ft/ft.h>

struct sink {
	char got[1 << 16];
	size_t len;
	size_t appetite; /* octets taken a call */
};

static size_t take(void *user, const void *buf, size_t len)
{
	struct sink *s = user;
	size_t n = len < s->appetite ? len : s->appetite;

	memcpy(s->got + s->len, buf, n);
	s->len += n;
	s->got[s->len] = '\0';
	return n;
}

static struct ft_output *make(struct sink *s, uint64_t cap)
{
	struct ft_output *o;

	memset(s, 0, sizeof(*s));
	s->appetite = SIZE_MAX;
	cr_assert_eq(ft_output_open(&o, cap, take, s), 0);
	return o;
}

static void put(struct ft_output *o, const char *text)
{
	cr_assert_eq(ft_output_write(o, text, strlen(text)), 0);
}

Test(output, passes_at_once_until_the_first_cut)
{
	struct sink s;
	struct ft_output *o = make(&s, 64);

	put(o, "boot ");
	cr_assert_str_eq(s.got, "boot ");
	ft_output_cut(o, 1);
	put(o, "one ");
	cr_assert_str_eq(s.got, "boot ");
	cr_assert_eq(ft_output_held(o), 4);
	ft_output_close(o);
}

Test(output, leaves_with_its_epoch_and_not_before)
{
	struct sink s;
	struct ft_output *o = make(&s, 64);

	ft_output_cut(o, 1);
	put(o, "two ");
	ft_output_cut(o, 2);
	put(o, "three ");
	ft_output_cut(o, 3);
	put(o, "four ");
	ft_output_release(o, 1);
	cr_assert_str_eq(s.got, "");
	ft_output_release(o, 2);
	cr_assert_str_eq(s.got, "two ");
	ft_output_release(o, 2);
	cr_assert_str_eq(s.got, "two ");
	ft_output_release(o, 3);
	cr_assert_str_eq(s.got, "two three ");
	ft_output_release(o, UINT64_MAX);
	cr_assert_str_eq(s.got, "two three four ");
	put(o, "free ");
	cr_assert_str_eq(s.got, "two three four free ");
	ft_output_close(o);
}

Test(output, drop_throws_away_what_is_held_and_goes_on_holding)
{
	struct sink s;
	struct ft_output *o = make(&s, 64);

	ft_output_cut(o, 1);
	put(o, "never ");
	ft_output_drop(o);
	cr_assert_eq(ft_output_held(o), 0);
	put(o, "nor this ");
	ft_output_release(o, 7);
	cr_assert_str_eq(s.got, "");
	ft_output_close(o);
}

Test(output, cap_refuses_whole_writes)
{
	struct sink s;
	struct ft_output *o = make(&s, 8);

	ft_output_cut(o, 1);
	put(o, "12345");
	cr_assert_eq(ft_output_room(o), 3);
	cr_assert_eq(ft_output_write(o, "6789", 4), -ENOSPC);
	cr_assert_eq(ft_output_held(o), 5);
	ft_output_cut(o, 2);
	ft_output_release(o, 2);
	put(o, "6789");
	ft_output_cut(o, 3);
	ft_output_release(o, 3);
	cr_assert_str_eq(s.got, "123456789");
	ft_output_close(o);
}

Test(output, a_slow_sink_gets_the_rest_later)
{
	struct sink s;
	struct ft_output *o = make(&s, 64);

	s.appetite = 3;
	put(o, "abcdefgh");
	cr_assert_str_eq(s.got, "abc");
	cr_assert_eq(ft_output_pending(o), 5);
	ft_output_kick(o);
	cr_assert_str_eq(s.got, "abcdef");
	s.appetite = 100;
	ft_output_cut(o, 1);
	put(o, "held");
	ft_output_kick(o);
	cr_assert_str_eq(s.got, "abcdefgh");
	ft_output_close(o);
}

Test(output, more_cuts_than_the_list_holds_never_let_out_early)
{
	struct sink s;
	struct ft_output *o = make(&s, 1024);

	for (unsigned n = 1; n <= 100; n++) {
		ft_output_cut(o, n);
		put(o, "x"); /* belongs to epoch n + 1 */
	}
	for (unsigned n = 1; n <= 100; n++) {
		ft_output_release(o, n);
		cr_assert_lt(s.len, n, "epoch %u: %zu octets are out", n, s.len);
	}
	ft_output_release(o, UINT64_MAX);
	cr_assert_eq(s.len, 100);
	ft_output_close(o);
}

/* Random programs against a model that keeps each octet with its epoch. */
Test(output, random_programs)
{
	for (unsigned seed = 1; seed <= 200; seed++) {
		struct sink s;
		struct ft_output *o = make(&s, 97);
		unsigned epoch = 1, released = 0, written = 0, allowed = 0;
		unsigned at_cut[1000] = { 0 };

		srand(seed);
		ft_output_cut(o, epoch); /* nothing yet: what comes belongs to epoch 2 */
		at_cut[epoch++] = 0;
		for (unsigned i = 0; i < 300; i++) {
			char buf[16];
			unsigned len = (unsigned)rand() % sizeof(buf);

			switch (rand() % 4) {
			case 0:
			case 1:
				for (unsigned k = 0; k < len; k++)
					buf[k] = (char)('a' + (written + k) % 26);
				if (ft_output_write(o, buf, len) == 0)
					written += len;
				break;
			case 2:
				ft_output_cut(o, epoch);
				at_cut[epoch++] = written;
				break;
			default:
				s.appetite = (size_t)rand() % 40;
				if (released + 1 < epoch)
					allowed = at_cut[++released];
				ft_output_release(o, released);
				break;
			}
			cr_assert_leq(s.len, allowed, "seed %u step %u: %zu octets out, %u allowed", seed, i, s.len,
				      allowed);
			cr_assert_eq(ft_output_held(o), written - allowed);
		}
		s.appetite = SIZE_MAX;
		ft_output_release(o, UINT64_MAX);
		cr_assert_eq(s.len, written);
		for (unsigned k = 0; k < written; k++)
			cr_assert_eq(s.got[k], (char)('a' + k % 26));
		ft_output_close(o);
	}
}

/* ---- packets ---- */

struct packets {
	unsigned got, refuse; /* whole packets so far; that many offers are not taken */
	bool bad;
};

/* Packet n is n % 37 + 1 octets, all of them n. */
static size_t take_packet(void *user, const void *buf, size_t len)
{
	struct packets *p = user;
	const uint8_t *octet = buf;

	if (p->refuse) {
		p->refuse--;
		return 0;
	}
	p->bad |= len != p->got % 37 + 1;
	for (size_t i = 0; i < len; i++)
		p->bad |= octet[i] != (uint8_t)p->got;
	p->got++;
	return len;
}

static int put_packet(struct ft_output *o, unsigned n)
{
	uint8_t buf[37];

	memset(buf, (int)n, sizeof(buf));
	return ft_output_write(o, buf, n % 37 + 1);
}

Test(output, packets_leave_whole_in_order_and_with_their_epoch)
{
	for (unsigned seed = 1; seed <= 200; seed++) {
		struct packets p = { 0 };
		struct ft_output *o;
		unsigned epoch = 1, released = 0, written = 0, allowed = 0;
		unsigned at_cut[1000] = { 0 };

		srand(seed);
		cr_assert_eq(ft_output_open_packets(&o, 211, take_packet, &p), 0);
		ft_output_cut(o, epoch++);
		for (unsigned i = 0; i < 300; i++) {
			switch (rand() % 4) {
			case 0:
			case 1:
				written += put_packet(o, written) == 0;
				break;
			case 2:
				ft_output_cut(o, epoch);
				at_cut[epoch++] = written;
				break;
			default:
				p.refuse = (unsigned)rand() % 3;
				if (released + 1 < epoch)
					allowed = at_cut[++released];
				ft_output_release(o, released);
				break;
			}
			cr_assert_leq(p.got, allowed, "seed %u step %u: %u packets out, %u allowed", seed, i, p.got,
				      allowed);
		}
		p.refuse = 0;
		ft_output_release(o, UINT64_MAX);
		cr_assert_eq(p.got, written);
		cr_assert(!p.bad, "seed %u: a packet was torn or out of its order", seed);
		ft_output_close(o);
	}
}

Test(output, packets_of_no_size_and_of_too_much)
{
	static uint8_t buf[FT_OUTPUT_PACKET_MAX + 1];
	struct packets p = { 0 };
	struct ft_output *o;

	cr_assert_eq(ft_output_open_packets(&o, 1 << 20, take_packet, &p), 0);
	cr_assert_eq(ft_output_write(o, buf, 0), -EMSGSIZE);
	cr_assert_eq(ft_output_write(o, buf, sizeof(buf)), -EMSGSIZE);
	ft_output_cut(o, 1);
	cr_assert_eq(ft_output_write(o, buf, sizeof(buf) - 1), 0);
	cr_assert_eq(ft_output_held(o), sizeof(buf) - 1 + 4);
	ft_output_close(o);
}
