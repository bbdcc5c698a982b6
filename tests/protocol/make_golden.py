#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""make_golden.py - the recorded streams in golden/, from a description of each.

    make_golden.py FOLDER       writes good-*.ftrec, bad-*.ftrec and index

Like the verifier this is written from docs/protocol.md and shares nothing with the library.  The files are committed: they must
decode in all later versions.  index has a line per file: name, exit status of ftdump, the verifier's sentence (its
beginning is enough for good ones).  A bad stream that ftdump prints without complaint breaks a rule about more than
one record; ftdump judges records one by one.
"""
import functools
import os
import struct
import sys
import zlib

from xxh3 import xxh3

M64 = 0xFFFFFFFFFFFFFFFF
PAGES = 256  # of the page space: region "pc.ram" has pages 0 to 99, "vga.vram" 128 to 143
(HELLO, HELLO_ACK, REFUSE, REGIONS, NOTIFY, ZERO, STATE, COMMIT, ACK, APPLIED, HEARTBEAT, BYE, ERROR, PROGRESS, SIDE, WORKING,
 SLAB, ROOM, DELTA, CHECKS, BASE, BASE_ACK) = (1, 2, 3, 4, 0x10, 0x11, 0x12, 0x13, 0x20, 0x21, 0x30, 0x31, 0x32, 0x80000001, 0x14, 0x22, 0x15, 0x23, 0x16,
                                0x17, 5, 6)
SLOTS = 512  # of the ring, as few as may be


def pad(b):
    return b + bytes(-len(b) % 8)


def record(kind, seq, epoch, body, reserved=0):
    return pad(struct.pack(">IIQII", kind, len(body), epoch, seq, reserved) + body)


def hello(**change):
    f = dict(magic=b"ft-recor", vmin=1, vmax=1, placement=1, mode=1, needed=0, offered=0, session=bytes(range(16)), generation=3,
             committed=0, pages=PAGES, state=1000, page=4096, chunk=1 << 20, lanes=2, beat=50, misses=5, identity=b"pc-q35\nvga",
             name=b"golden")
    f.update(change)
    return struct.pack(">8sHHHHQQ16sQQQQIIIIIIII", f["magic"], f["vmin"], f["vmax"], f["placement"], f["mode"], f["needed"],
                       f["offered"], f["session"], f["generation"], f["committed"], f["pages"], f["state"], f["page"], f["chunk"],
                       f["lanes"], f["beat"], f["misses"], len(f["identity"]), len(f["name"]), 0) + f["identity"] + f["name"]


def hello_ack(**change):
    f = dict(version=1, placement=1, credits=1, caps=0, generation=2, committed=0, beat=100, misses=5)
    f.update(change)
    return struct.pack(">HHIQQQII", *f.values())


def regions(*entries):
    b = struct.pack(">II", len(entries), 0)
    for first, pages, name in entries:
        b += struct.pack(">QQII", first, 4096 * pages, 0, len(name)) + pad(name)
    return b


MACHINE = regions((0, 100, b"pc.ram"), (128, 16, b"vga.vram"))


def reason(code, text):
    return struct.pack(">II", code, len(text)) + text


def page(number, epoch):
    """Contents of a page."""
    return bytes([number & 255, epoch & 255, 7, 11]) * 1024


@functools.lru_cache(maxsize=None)
def page_digest(number, epoch):
    return xxh3(page(number, epoch), number)


def whole_delta(number, epoch):
    line = struct.pack(">H", 0xFFFF) + page(number, epoch)[:64]
    return struct.pack(">QQ", number, M64) + 64 * line


def runs_of(pages):
    runs = []
    for p in pages:
        if runs and runs[-1][0] + runs[-1][1] == p:
            runs[-1][1] += 1
        else:
            runs.append([p, 1])
    return runs


def runs(run_list, digest, between=b""):
    b = struct.pack(">IIQ", len(run_list), sum(r[1] for r in run_list), digest & M64) + between
    for first, nr in run_list:
        b += struct.pack(">QII", first, nr, 0)
    return b


class Stream:
    """A file under way.  P and S are the two sides; who is recording decides what is sent and what received."""

    def __init__(self, recorder="P", payload=True):
        self.recorder, self.payload = recorder, payload
        self.out = bytearray(struct.pack(">8sII", b"ft-strea", 1, int(payload)))
        self.now = 1000000
        self.connection = 0
        self.seq = {}
        self.counts()

    def counts(self):
        self.data = self.zero = self.digest = self.side = 0
        self.state = b""

    def entry(self, kind, direction, lane, payload, offset=0, window=0, write_bytes=0, crc_xor=0):
        self.now += 250000
        tail = struct.pack(">HHIQQIIII", kind, direction, lane, self.now, offset, window, write_bytes, len(payload),
                           self.connection)
        crc = zlib.crc32(payload, zlib.crc32(tail)) ^ crc_xor
        self.out += struct.pack(">4sI", b"ften", crc) + tail + pad(payload)

    def open(self, text=b"127.0.0.1:7000"):
        self.connection += 1
        self.counts()
        self.aside = 0, 0, 0, 0, b""
        self.entry(3, 0, 0, text)

    def close(self, text=b"closed"):
        self.entry(4, 0, 0, text)

    def message(self, side, lane, octets):
        self.entry(1, 1 if side == self.recorder else 2, lane, octets)

    def send(self, side, lane, kind, body=b"", epoch=0, skip=0):
        at = self.connection, side, lane
        self.seq[at] = self.seq.get(at, 0) + 1 + skip
        self.last = record(kind, self.seq[at], epoch, body)
        self.message(side, lane, self.last)

    def begin(self, hello_body=None, machine=MACHINE, ack=None):
        self.open()
        self.send("P", 0, HELLO, hello_body or hello())
        self.send("P", 0, REGIONS, machine)
        self.send("S", 0, HELLO_ACK, ack or hello_ack())

    def write(self, lane, first, nr, epoch, offset=0):
        if self.recorder == "P":
            octets = b"".join(page(first + i, epoch) for i in range(nr))
            self.entry(2, 1, lane, octets if self.payload else b"", 4096 * first + offset, 0, 4096 * nr)

    def notify(self, lane, pages, epoch, content=None, digest_off=0):
        digest = sum(page_digest(p, content or epoch) for p in pages) + digest_off
        self.data += len(pages)
        self.digest += digest
        self.send("P", lane, NOTIFY, runs(runs_of(pages), digest), epoch)

    def data_pages(self, lane, pages, epoch):
        for first, nr in runs_of(pages):
            self.write(lane, first, nr, epoch)
        self.notify(lane, pages, epoch)

    def base(self, connection, base=0, epoch=0):
        self.send("P", 0, BASE, struct.pack(">QQQ", connection, base, epoch))

    def base_ack(self, epoch=0):
        self.send("S", 0, BASE_ACK, struct.pack(">Q", epoch))

    def checks(self, lane, pages, epoch, off=0, reserved=0, more=b""):
        """Of the pages that come next."""
        self.send("P", lane, CHECKS, struct.pack(">II", len(pages), reserved) +
                  b"".join(struct.pack(">I", (page_digest(p, epoch) + off) & 0xFFFFFFFF) for p in pages) + more, epoch)

    def deltas(self, lane, pages, epoch, off=0):
        """Pages of which every word differs."""
        self.tell_deltas(lane, b"".join(whole_delta(p, epoch) for p in pages), len(pages),
                         sum(page_digest(p, epoch) for p in pages), epoch, off)

    def tell_deltas(self, lane, body, count, digest, epoch, off=0, reserved=0):
        self.data += count
        self.digest += digest + off
        self.send("P", lane, DELTA, struct.pack(">IIQ", count, reserved, digest + off & M64) + body, epoch)

    def begin_slab(self, credits=3, needed=0, slots=SLOTS):
        self.begin(hello(placement=2, needed=needed), ack=hello_ack(placement=2, credits=credits, caps=needed))
        self.position = 0
        self.room(0, slots)

    def room(self, freed, slots=SLOTS):
        self.send("S", 0, ROOM, struct.pack(">QQ", slots, freed))

    def write_ring(self, lane, position, pages, content):
        """A write, and another one if it would go over the end of the ring."""
        if self.recorder == "S":
            return
        here = min(len(pages), SLOTS - position % SLOTS)
        octets = b"".join(page(p, content) for p in pages[:here])
        self.entry(2, 1, lane, octets if self.payload else b"", position % SLOTS * 4096, 1, here * 4096)
        if pages[here:]:
            self.write_ring(lane, position + here, pages[here:], content)

    def notify_slab(self, lane, position, pages, epoch, content=None):
        digest = sum(page_digest(p, content or epoch) for p in pages)
        self.data += len(pages)
        self.digest += digest
        self.send("P", lane, SLAB, runs(runs_of(pages), digest, struct.pack(">Q", position)), epoch)

    def ring_pages(self, lane, pages, epoch, content=None):
        """To the next positions."""
        self.write_ring(lane, self.position, pages, content or epoch)
        self.notify_slab(lane, self.position, pages, epoch, content)
        self.position += len(pages)

    def swap(self):
        """To the other one of two epochs under way: its counts, for its commit."""
        now = self.data, self.zero, self.digest, self.side, self.state
        self.data, self.zero, self.digest, self.side, self.state = self.aside
        self.aside = now

    def zero_pages(self, lane, pages, epoch):
        digest = sum(xxh3(p.to_bytes(8, "big")) for p in pages)
        self.zero += len(pages)
        self.digest += digest
        self.send("P", lane, ZERO, runs(runs_of(pages), digest), epoch)

    def device_state(self, octets, epoch, piece=64):
        for at in range(0, len(octets), piece):
            self.send("P", 1, STATE, struct.pack(">QQ", len(octets), at) + octets[at:at + piece], epoch)
        self.state = octets

    def side_data(self, octets, epoch, skip=0):
        self.send("P", 1, SIDE, struct.pack(">Q", self.side + skip) + octets, epoch)
        self.digest += xxh3(octets, self.side)
        self.side += len(octets)

    def commit_body(self, data=0, zero=0, state=0, side=0, digest=0, lanes=2, seqs=None):
        total = self.digest + xxh3(self.state, len(self.state)) + digest
        seqs = seqs or [self.seq.get((self.connection, "P", i), 0) if i <= 2 else 0 for i in range(1, 9)]
        return struct.pack(">QQQQQII8I", self.data + data, self.zero + zero, len(self.state) + state, self.side + side, total & M64,
                           lanes, 0, *seqs)

    def commit(self, epoch, **off):
        self.send("P", 0, COMMIT, self.commit_body(**off), epoch)
        self.counts()

    def ack(self, epoch):
        self.send("S", 0, ACK, epoch=epoch)

    def applied(self, epoch):
        self.send("S", 0, APPLIED, epoch=epoch)

    def whole_epoch(self, epoch, pages=(1, 2, 3)):
        self.data_pages(1, list(pages), epoch)
        self.commit(epoch)
        self.ack(epoch)
        self.applied(epoch)


# ---- good ones ---------------------------------------------------------------------------------


def good_primary():
    """Two connections, several epochs, every record a primary meets."""
    s = Stream()
    s.begin()
    s.send("P", 0, PROGRESS, struct.pack(">IIQQ", 1, 0, 3, 20), 1)
    s.send("P", 0, HEARTBEAT, struct.pack(">QQ", 12345, 0))
    s.data_pages(1, [0, 1, 2, 99, 128], 1)
    s.send("S", 0, HEARTBEAT, struct.pack(">QQ", 777, 12345))
    s.zero_pages(2, [3, 4, 5, 140, 143], 1)
    s.data_pages(1, [1], 1)  # a later round
    s.zero_pages(1, [2], 1)
    s.device_state(bytes(range(200)), 1)
    s.commit(1)
    s.ack(1)
    s.applied(1)
    s.commit(2)  # nothing was written, no device state
    s.ack(2)
    s.applied(2)
    s.data_pages(2, [7], 3)
    s.device_state(b"x" * 64, 3)
    s.commit(3)
    s.ack(3)
    s.send("S", 0, HEARTBEAT, struct.pack(">QQ", 888, 12345))
    s.applied(3)
    s.send("P", 0, BYE, reason(11, b"stopped by the operator"))
    s.write(2, 9, 1, 4)  # another thread was still at it: without effect
    s.notify(2, [9], 4)
    s.close()
    s.begin(hello(committed=3, generation=4), ack=hello_ack(committed=3))
    s.whole_epoch(1)
    return s


def good_secondary():
    """Without payload and writes; a commit in front of its data, a repeated record, a skipped one, an error."""
    s = Stream("S", payload=False)
    s.begin()
    s.notify(1, [10, 11], 1)
    first = s.last
    s.message("P", 1, first)
    s.send("P", 2, 0x80001234, b"what comes later", 1)
    s.device_state(b"state", 1)
    s.zero_pages(2, [50], 1)
    late = s.last  # the commit is received in front of it
    del s.out[-(48 + len(late)):]
    s.commit(1)
    s.message("P", 2, late)
    s.ack(1)
    s.applied(1)
    s.notify(2, [50], 2)
    s.send("S", 0, ERROR, reason(9, b"notify-write of epoch 2: digest differs"), 2)
    s.close()
    return s


def good_refused():
    s = Stream("S", payload=False)
    s.open()
    s.send("P", 0, HELLO, hello())
    s.send("P", 0, REGIONS, MACHINE)
    s.send("S", 0, REFUSE, reason(6, b"the machine runs here, generation 4"))
    s.close(b"refused")
    return s


def good_busy():
    """Another primary is turned away while one is served."""
    s = Stream("S", payload=False)
    s.begin()
    s.notify(1, [10, 11], 1)
    counted = s.data, s.digest
    s.open(b"127.0.0.1:7001")
    s.send("P", 0, HELLO, hello(session=b"another session."))
    s.connection = 1
    s.data, s.digest = counted
    s.device_state(b"state", 1)
    s.connection = 2
    s.send("S", 0, REFUSE, reason(5, b"another primary is connected"))
    s.close(b"refused")
    s.connection = 1
    s.commit(1)
    s.ack(1)
    s.applied(1)
    return s


def good_empty():
    return Stream()


def good_side():
    """A side stream: of the full sync between the pages, of no octets, behind the device state, of another connection."""
    s = Stream()
    s.begin(hello(needed=1), ack=hello_ack(caps=1))
    s.side_data(b"first", 1)
    s.data_pages(1, [1, 2], 1)
    s.side_data(bytes(65504), 1)
    s.send("S", 0, WORKING, epoch=1)
    s.side_data(b"x", 1)
    s.commit(1)
    s.send("S", 0, WORKING, epoch=1)
    s.ack(1)
    s.applied(1)
    s.whole_epoch(2)
    s.device_state(b"state", 3)
    s.side_data(bytes(range(100)), 3)
    s.commit(3)
    s.ack(3)
    s.applied(3)
    s.close()
    s.begin(hello(needed=1), ack=hello_ack(caps=1))
    s.side_data(b"again", 1)
    s.whole_epoch(1)
    return s


def good_side_refused():
    s = Stream("S", payload=False)
    s.open()
    s.send("P", 0, HELLO, hello(needed=1))
    s.send("P", 0, REGIONS, MACHINE)
    s.send("S", 0, REFUSE, reason(2, b"hello: the machine here takes no side stream"))
    s.close(b"refused")
    return s


def good_delta():
    """Pages by their difference: to the epoch before, also to zeros; to what this one has told; a few words, none; a later connection."""
    s = Stream()
    s.begin(hello(needed=2), ack=hello_ack(caps=2))
    s.data_pages(1, [1, 2, 3], 1)
    s.zero_pages(2, [50], 1)
    s.commit(1)
    s.ack(1)
    s.applied(1)
    s.deltas(1, [1, 3], 2)
    s.deltas(2, [50, 60], 2)
    s.data_pages(1, [2], 2)
    few = bytearray(page(2, 2))
    few[64 * 5 + 4 * 3:64 * 5 + 4 * 4] = b"wxyz"
    few[64 * 63 + 4 * 15:] = b"last"
    s.tell_deltas(1, struct.pack(">QQH", 2, 1 << 5 | 1 << 63, 1 << 3) + b"wxyz" + struct.pack(">H", 1 << 15) + b"last", 1,
                  xxh3(bytes(few), 2), 2)
    s.zero_pages(1, [3], 2)
    s.tell_deltas(1, struct.pack(">QQ", 3, 0), 1, xxh3(bytes(4096), 3), 2)
    s.commit(2)
    s.ack(2)
    s.applied(2)
    s.close()
    s.begin(hello(needed=2, committed=2), ack=hello_ack(caps=2, committed=2))
    s.whole_epoch(1)
    s.deltas(1, [2], 2)
    s.commit(2)
    s.ack(2)
    return s


def good_checks():
    """Page-checks in front of a notify-write, a notify-delta and, in another connection, a notify-slab; not of all; something unknown between."""
    s = Stream()
    s.begin(hello(needed=6), ack=hello_ack(caps=6))
    s.checks(1, [1, 2, 3], 1)
    s.data_pages(1, [1, 2, 3], 1)
    s.data_pages(2, [60], 1)
    s.commit(1)
    s.ack(1)
    s.applied(1)
    s.checks(1, [1, 3], 2)
    s.send("P", 1, 0x80000077, b"later", 2)
    s.deltas(1, [1, 3], 2)
    s.commit(2)
    s.ack(2)
    s.close()
    s.begin_slab(needed=4)
    s.write_ring(1, 0, [7, 9], 1)
    s.checks(1, [7, 9], 1)
    s.notify_slab(1, 0, [7, 9], 1)
    s.commit(1)
    s.ack(1)
    return s


def resync_started(connection=1, base=0, base_epoch=0, held=0, caps=8, **k):
    s = Stream(**k)
    s.begin(hello(offered=8), ack=hello_ack(caps=caps))
    s.base(connection, base, base_epoch)
    s.base_ack(held)
    return s


def good_resync():
    """A first connection, one that goes on from it, a third whose base the secondary has not; heartbeats between."""
    s = resync_started()
    s.whole_epoch(1)
    s.whole_epoch(2)
    s.close()
    s.begin(hello(offered=8, committed=1), ack=hello_ack(caps=8, committed=2))
    s.send("P", 0, HEARTBEAT, struct.pack(">QQ", 1, 0))
    s.base(2, 1, 1)
    s.send("S", 0, HEARTBEAT, struct.pack(">QQ", 2, 1))
    s.base_ack(2)
    s.whole_epoch(1, pages=[3])
    s.close()
    s.begin(hello(offered=8), ack=hello_ack(caps=8))
    s.base(4, 2, 1)
    s.base_ack(0)
    s.whole_epoch(1)
    return s


def good_slab():
    """Three epochs under way, their records mixed; positions left out; the end of the ring; pages told twice; a later connection."""
    s = Stream()
    s.begin_slab()
    s.ring_pages(1, [0, 1, 2, 99, 128], 1)
    s.zero_pages(2, [3, 4], 1)
    s.ring_pages(1, [1], 1, content=9)  # a later round
    s.ring_pages(2, [4], 1)  # zeros no longer
    s.swap()
    s.ring_pages(2, [7, 8], 2)  # of the next epoch, before the commit
    s.swap()
    s.device_state(b"state of epoch 1", 1)
    s.commit(1, seqs=[3, 2, 0, 0, 0, 0, 0, 0])
    s.swap()
    s.ring_pages(1, [20], 2)
    s.commit(2)
    s.ring_pages(2, [7], 3)
    s.ack(1)
    s.applied(1)
    s.room(2)  # older than what applied said
    s.position = 509  # those between are left out
    s.ring_pages(1, list(range(30, 39)), 3)  # over the end of the ring: two writes
    s.ack(2)
    s.commit(3)
    s.applied(2)
    s.ack(3)
    s.applied(3)
    s.commit(4)
    s.ack(4)
    s.applied(4)
    s.ring_pages(1, [30], 5)
    s.send("P", 0, BYE, reason(11, b"stopped by the operator"))
    s.write_ring(2, s.position, [9], 5)  # without effect
    s.close()
    s.begin_slab(credits=1, slots=1024)
    s.ring_pages(1, [5], 1)
    s.commit(1)
    s.ack(1)
    s.applied(1)
    return s


def rounds(s, epoch, nr):
    """Each is 116 pages: five of them are longer than the ring."""
    for _ in range(nr):
        s.ring_pages(1, list(range(100)), epoch)
        s.ring_pages(2, list(range(128, 144)), epoch)


def good_slab_long():
    """Epochs that are longer than the ring: room is made while they come."""
    s = Stream(payload=False)
    s.begin_slab(credits=8)
    rounds(s, 1, 4)
    s.room(232)
    rounds(s, 1, 2)
    s.room(400)
    s.room(464)
    rounds(s, 1, 1)
    s.commit(1)
    s.ring_pages(1, [1], 2)
    s.ack(1)
    s.room(812)  # of epoch 1 still
    s.applied(1)
    rounds(s, 2, 4)
    s.room(929)
    rounds(s, 2, 1)
    s.commit(2)
    s.ack(2)
    s.applied(2)
    return s


def good_slab_secondary():
    """One record, the last to come, makes two epochs whole; the side stream of an epoch waits for the ack of the one before."""
    s = Stream("S", payload=False)
    s.begin_slab(credits=2, needed=1)
    s.side_data(b"first", 1)
    s.ring_pages(1, [10, 11], 1)
    s.ring_pages(2, [50], 1)
    late = s.last
    del s.out[-(48 + len(late)):]
    s.commit(1)
    s.ring_pages(1, [10], 2)
    s.commit(2)
    s.message("P", 2, late)
    s.ack(1)
    s.ack(2)
    s.applied(1)
    s.side_data(b"third", 3)
    s.applied(2)
    s.commit(3)
    s.ack(3)
    s.applied(3)
    return s


def good_no_payload():
    s = Stream(payload=False)
    s.begin()
    s.whole_epoch(1)
    s.whole_epoch(2)
    return s


# ---- bad ones: (function, exit status of ftdump, sentence of the verifier) ----------------------

BAD = []


def bad(sentence, ftdump=0):
    def keep(function):
        BAD.append((function, ftdump, sentence))
        return function
    return keep


def started(**k):
    s = Stream()
    s.begin(**k)
    return s


@bad("not a recorded stream", 1)
def bad_magic():
    s = Stream()
    s.out[3] ^= 1
    return s


@bad("recording of version 2", 1)
def bad_file_version():
    s = Stream()
    s.out[11] = 2
    return s


@bad("cut off in an entry", 1)
def bad_cut():
    s = started()
    del s.out[-3:]
    return s


@bad("checksum of an entry is wrong", 1)
def bad_checksum():
    s = Stream()
    s.connection = 1
    s.entry(3, 0, 0, b"peer", crc_xor=1)
    return s


@bad("entry of unknown kind 5", 1)
def bad_kind():
    s = Stream()
    s.connection = 1
    s.entry(5, 0, 0, b"")
    return s


@bad("an entry of connection 1, which is not open")
def bad_outside():
    s = started()
    s.close()
    s.send("P", 0, HEARTBEAT, bytes(16))
    return s


@bad("entry without the number of a connection", 1)
def bad_connection_zero():
    s = Stream()
    s.entry(3, 0, 0, b"peer")
    return s


@bad("open: connection 3, 2 was expected")
def bad_connection_order():
    s = started()
    s.connection += 1
    s.open()
    return s


@bad("heartbeat: before hello")
def bad_no_hello():
    s = Stream()
    s.open()
    s.send("P", 0, HEARTBEAT, bytes(16))
    return s


@bad("notify-write of epoch 1: before hello-ack")
def bad_early():
    s = Stream("S", False)
    s.open()
    s.send("P", 0, HELLO, hello())
    s.send("P", 0, REGIONS, MACHINE)
    s.notify(1, [1], 1)
    return s


@bad("hello: a second one")
def bad_two_hellos():
    s = started()
    s.send("P", 0, HELLO, hello())
    return s


@bad("heartbeat: number 4 on lane 0, 3 was expected")
def bad_gap():
    s = started()
    s.send("P", 0, HEARTBEAT, bytes(16), skip=1)
    return s


@bad("heartbeat: number 3 on lane 0 was sent before")
def bad_sent_twice():
    s = started()
    s.send("P", 0, HEARTBEAT, bytes(16))
    s.message("P", 0, s.last)
    return s


@bad("hello: no magic number", 1)
def bad_hello_magic():
    return started(hello_body=hello(magic=b"other!!!"))


@bad("hello: 9 data lanes", 1)
def bad_hello_lanes():
    return started(hello_body=hello(lanes=9))


@bad("hello: name is not printable", 1)
def bad_hello_name():
    return started(hello_body=hello(name=b"go\x1blden"))


@bad("hello-ack: a capability in use was not offered")
def bad_capability():
    return started(ack=hello_ack(caps=2))


@bad("hello-ack: a needed capability is not in use")
def bad_needed():
    return started(hello_body=hello(needed=1))


@bad("hello-ack: version 2 was not offered")
def bad_version():
    return started(ack=hello_ack(version=2))


@bad("hello-ack: 2 epoch credits")
def bad_credits():
    return started(ack=hello_ack(credits=2))


@bad("hello-ack: heartbeat of 10 ms, 5 misses")
def bad_heartbeat():
    return started(ack=hello_ack(beat=10))


@bad("region 1: begins at page 64", 1)
def bad_region_overlap():
    return started(machine=regions((0, 100, b"a"), (64, 1, b"b")))


@bad("region 1: its name is taken")
def bad_region_name():
    return started(machine=regions((0, 100, b"a"), (128, 1, b"a")))


@bad("commit of epoch 1: sent by the secondary")
def bad_side():
    s = started()
    s.send("S", 0, COMMIT, s.commit_body(), 1)
    return s


@bad("commit of epoch 1: on lane 1")
def bad_lane():
    s = started()
    s.send("P", 1, COMMIT, s.commit_body(), 1)
    return s


@bad("device-state of epoch 1: on lane 2")
def bad_state_lane():
    s = started()
    s.send("P", 2, STATE, struct.pack(">QQ", 3, 0) + b"abc", 1)
    return s


@bad("record 0x77 of epoch 1: unknown and not optional")
def bad_unknown():
    s = started()
    s.send("P", 0, 0x77, b"12345678", 1)
    return s


@bad("bye: padding is not zeros", 1)
def bad_padding():
    s = started()
    m = bytearray(record(BYE, 3, 0, reason(0, b"x")))
    m[-1] = 1
    s.message("P", 0, bytes(m))
    return s


@bad("ack of epoch 1: reserved field of the head is not 0", 1)
def bad_reserved():
    s = started()
    s.message("S", 0, record(ACK, 2, 1, b"", reserved=1))
    return s


@bad("notify-write of epoch 1: run 1: page 3 is not behind the run before and a gap", 1)
def bad_runs_touch():
    s = started()
    s.send("P", 1, NOTIFY, runs([[1, 2], [3, 1]], 0), 1)
    return s


@bad("notify-write of epoch 1: 4 pages announced, its runs have 3", 1)
def bad_runs_sum():
    s = started()
    b = bytearray(runs([[1, 2], [4, 1]], 0))
    b[7] = 4
    s.send("P", 1, NOTIFY, bytes(b), 1)
    return s


@bad("zero-pages of epoch 1: run 0: page 99 or one behind it lies in no region")
def bad_gap_page():
    s = started()
    s.zero_pages(1, [99, 100], 1)
    return s


@bad("zero-pages of epoch 1: digest of its page numbers is")
def bad_zero_digest():
    s = started()
    s.send("P", 1, ZERO, runs([[1, 1]], 5), 1)
    return s


@bad("notify-write of epoch 1: page 2 was not written on lane 1")
def bad_unwritten():
    s = started()
    s.write(1, 1, 1, 1)
    s.write(2, 2, 1, 1)
    s.notify(1, [1, 2], 1)
    return s


@bad("commit of epoch 1: page 2 was written on lane 1 and not told")
def bad_untold():
    s = started()
    s.write(1, 1, 2, 1)
    s.notify(1, [1], 1)
    s.commit(1)
    return s


@bad("notify-write of epoch 1: digest of its pages is")
def bad_page_digest():
    s = started()
    s.write(1, 1, 1, 1)
    s.notify(1, [1], 1, content=2)
    return s


@bad("write: not whole pages")
def bad_write_part():
    s = started()
    s.write(1, 1, 1, 1, offset=8)
    return s


@bad("write: epoch 1 is not applied yet")
def bad_write_early():
    s = started()
    s.data_pages(1, [1], 1)
    s.commit(1)
    s.ack(1)
    s.write(1, 1, 1, 2)
    return s


@bad("zero-pages of epoch 1: page 1 was told on lane 1, and now on lane 2")
def bad_lane_change():
    s = started()
    s.data_pages(1, [1], 1)
    s.zero_pages(2, [1], 1)
    return s


@bad("zero-pages of epoch 2: only epoch 0 is applied")
def bad_future():
    s = started()
    s.zero_pages(1, [1], 2)
    return s


@bad("zero-pages of epoch 1: epoch 1 is over")
def bad_late():
    s = started()
    s.whole_epoch(1)
    s.zero_pages(1, [1], 1)
    return s


@bad("zero-pages of epoch 1: behind the last record that the commit names")
def bad_behind_commit():
    s = Stream("S", False)
    s.begin()
    s.zero_pages(1, [1], 1)
    s.commit(1, seqs=[1, 5, 0, 0, 0, 0, 0, 0])
    s.zero_pages(1, [2], 1)
    return s


@bad("device-state of epoch 1: piece at offset 9, 5 was expected")
def bad_state_gap():
    s = started()
    s.send("P", 1, STATE, struct.pack(">QQ", 20, 0) + b"12345", 1)
    s.send("P", 1, STATE, struct.pack(">QQ", 20, 9) + b"12345", 1)
    return s


@bad("device-state of epoch 1: 1001 octets, hello said at most 1000")
def bad_state_limit():
    s = started()
    s.send("P", 1, STATE, struct.pack(">QQ", 1001, 0) + b"12345", 1)
    return s


@bad("commit of epoch 1: 8 octets of device state came, 9 announced")
def bad_state_short():
    s = started()
    s.device_state(b"12345678", 1)
    s.commit(1, state=1)
    return s


def side_started():
    return started(hello_body=hello(needed=1), ack=hello_ack(caps=1))


@bad("side-data of epoch 1: hello named no side stream")
def bad_side_unasked():
    s = started()
    s.side_data(b"abc", 1)
    return s


@bad("side-data of epoch 1: piece at offset 4, 3 was expected")
def bad_side_gap():
    s = side_started()
    s.side_data(b"abc", 1)
    s.side_data(b"def", 1, skip=1)
    return s


@bad("side-data of epoch 1: piece at offset 0, 3 was expected")
def bad_side_again():
    s = side_started()
    s.side_data(b"abc", 1)
    s.side_data(b"abc", 1, skip=-3)
    return s


@bad("side-data of epoch 1: on lane 2")
def bad_side_lane():
    s = side_started()
    s.send("P", 2, SIDE, struct.pack(">Q", 0) + b"abc", 1)
    return s


@bad("side-data of epoch 1: body of 8 octets", 1)
def bad_side_empty():
    s = side_started()
    s.side_data(b"", 1)
    return s


@bad("side-data of epoch 1: epoch 1 is over")
def bad_side_late():
    s = side_started()
    s.whole_epoch(1)
    s.side_data(b"abc", 1)
    return s


@bad("side-data of epoch 1: behind the last record that the commit names")
def bad_side_behind_commit():
    s = Stream("S", False)
    s.begin(hello(needed=1), ack=hello_ack(caps=1))
    s.side_data(b"abc", 1)
    s.commit(1, seqs=[1, 5, 0, 0, 0, 0, 0, 0])
    s.side_data(b"def", 1)
    return s


@bad("commit of epoch 1: 3 octets of the side stream came, 4 announced")
def bad_side_count():
    s = side_started()
    s.side_data(b"abc", 1)
    s.commit(1, side=1)
    return s


@bad("commit of epoch 1: digest is")
def bad_side_digest():
    s = side_started()
    s.side_data(b"abc", 1)
    s.digest += xxh3(b"abd", 0) - xxh3(b"abc", 0)
    s.commit(1)
    return s


@bad("working of epoch 1: sent by the primary")
def bad_working():
    s = side_started()
    s.send("P", 0, WORKING, epoch=1)
    return s


@bad("commit of epoch 1: 1 data pages told, 2 announced")
def bad_data_count():
    s = started()
    s.data_pages(1, [1], 1)
    s.commit(1, data=1)
    return s


@bad("commit of epoch 1: 1 zero pages told, 0 announced")
def bad_zero_count():
    s = started()
    s.zero_pages(1, [1], 1)
    s.commit(1, zero=-1)
    return s


@bad("commit of epoch 1: digest is")
def bad_commit_digest():
    s = started()
    s.data_pages(1, [1], 1)
    s.commit(1, digest=1)
    return s


@bad("commit of epoch 1: lane 1 is at record 2 already, not 1")
def bad_commit_seq():
    s = started()
    s.data_pages(1, [1], 1)
    s.data_pages(1, [2], 1)
    s.commit(1, seqs=[1, 0, 0, 0, 0, 0, 0, 0])
    return s


@bad("commit of epoch 2: epoch 1 was expected")
def bad_commit_order():
    s = started()
    s.commit(2)
    return s


@bad("ack of epoch 1: before the epoch was whole")
def bad_ack_early():
    s = started()
    s.data_pages(1, [1], 1)
    s.ack(1)
    return s


@bad("ack of epoch 1: before the epoch was whole")
def bad_ack_lane_behind():
    s = Stream("S", False)
    s.begin()
    s.zero_pages(1, [1], 1)
    s.commit(1, seqs=[2, 0, 0, 0, 0, 0, 0, 0])
    s.ack(1)
    return s


@bad("ack of epoch 1: epoch 2 was expected")
def bad_ack_twice():
    s = started()
    s.commit(1)
    s.ack(1)
    s.ack(1)
    return s


@bad("applied of epoch 1: before its ack")
def bad_applied_early():
    s = started()
    s.commit(1)
    s.applied(1)
    return s


@bad("heartbeat: behind the last record of its side")
def bad_after_bye():
    s = started()
    s.send("P", 0, BYE, reason(0, b""))
    s.send("P", 0, HEARTBEAT, bytes(16))
    return s


# ---- slab placement ----


def slab_started(recorder="P", payload=False, **k):
    s = Stream(recorder, payload)
    s.begin_slab(**k)
    return s


def slab_answered():
    """Before the first room."""
    s = Stream(payload=False)
    s.begin(hello(placement=2), ack=hello_ack(placement=2, credits=3))
    s.position = 0
    return s


def slab_epoch(s, epoch, pages=(1, 2)):
    s.ring_pages(1, list(pages), epoch)
    s.commit(epoch)
    s.ack(epoch)
    s.applied(epoch)


@bad("hello-ack: 9 epoch credits", 1)
def bad_slab_credits():
    return slab_started(credits=9)


@bad("hello-ack: 0 epoch credits", 1)
def bad_slab_no_credits():
    return slab_started(credits=0)


@bad("heartbeat: before the first room")
def bad_slab_no_room():
    s = slab_answered()
    s.send("S", 0, HEARTBEAT, bytes(16))
    return s


@bad("write: before the first room")
def bad_slab_write_no_room():
    s = slab_answered()
    s.write_ring(1, 0, [1], 1)
    return s


@bad("notify-slab of epoch 1: before the first room")
def bad_slab_told_no_room():
    s = slab_answered()
    s.notify_slab(1, 0, [1], 1)
    return s


@bad("room: the first one, and free up to position 5")
def bad_room_first():
    s = slab_answered()
    s.room(5)
    return s


@bad("room: 1024 slots, and 512 before")
def bad_room_slots():
    s = slab_started()
    s.room(0, 1024)
    return s


@bad("room: 511 slots", 1)
def bad_room_small():
    return slab_started(slots=511)


@bad("room: 2251799813685249 slots", 1)
def bad_room_large():
    return slab_started(slots=(1 << 51) + 1)


@bad("room: free up to position 18446744073709551104", 1)
def bad_room_end():
    s = slab_started()
    s.room((1 << 64) - SLOTS)
    return s


@bad("room: position 2 was not told in epoch 1")
def bad_room_untold():
    s = slab_started()
    s.ring_pages(1, [1, 2], 1)
    s.room(3)
    return s


@bad("room: position 2 was not told in epoch 1")
def bad_room_next_epoch():
    s = slab_started()
    s.ring_pages(1, [1, 2], 1)
    s.ring_pages(2, [1], 2)
    s.room(3)
    return s


@bad("room: the placement is mirror")
def bad_room_mirror():
    s = started()
    s.room(0)
    return s


@bad("room: sent by the primary")
def bad_room_primary():
    s = slab_started()
    s.send("P", 0, ROOM, struct.pack(">QQ", SLOTS, 0))
    return s


@bad("room of epoch 1: an epoch where there is none", 1)
def bad_room_epoch():
    s = slab_started()
    s.send("S", 0, ROOM, struct.pack(">QQ", SLOTS, 0), 1)
    return s


@bad("notify-slab of epoch 1: the placement is mirror")
def bad_slab_mirror():
    s = started()
    s.notify_slab(1, 0, [1], 1)
    return s


@bad("notify-write of epoch 1: the placement is slab")
def bad_slab_notify_write():
    s = slab_started()
    s.notify(1, [1], 1)
    return s


@bad("write: to window 1")
def bad_window_mirror():
    s = started()
    s.write_ring(1, 0, [1], 1)
    return s


@bad("write: to window 0")
def bad_window_slab():
    s = slab_started()
    s.write(1, 1, 1, 1)
    return s


@bad("write: over the end of the ring")
def bad_slab_write_end():
    s = slab_started()
    slab_epoch(s, 1)
    s.entry(2, 1, 1, b"", 511 * 4096, 1, 2 * 4096)
    return s


@bad("write: position 514, the ring ends before 514")
def bad_slab_write_room():
    s = slab_started()
    slab_epoch(s, 1)
    s.write_ring(1, 513, [1, 2], 2)
    return s


@bad("write: position 1 was written before")
def bad_slab_written():
    s = slab_started()
    s.write_ring(1, 0, [1, 2], 1)
    s.write_ring(1, 1, [2], 1)
    return s


@bad("write: position 1 was written before")
def bad_slab_written_told():
    s = slab_started()
    s.ring_pages(1, [1, 2], 1)
    s.commit(1)
    s.ack(1)
    s.write_ring(1, 513, [2], 2)
    return s


@bad("notify-slab of epoch 2: position 1, only those from 2 on are in the ring")
def bad_slab_position_free():
    s = slab_started()
    slab_epoch(s, 1)
    s.notify_slab(1, 1, [1], 2)
    return s


@bad("notify-slab of epoch 1: position 0, only those from 2 on are in the ring")
def bad_slab_position_room():
    s = slab_started("S")
    s.ring_pages(1, [1, 2], 1)
    s.room(2)
    s.notify_slab(1, 0, [3], 1)
    return s


@bad("notify-slab of epoch 1: position 512, the ring ends before 512")
def bad_slab_position_end():
    s = slab_started("S")
    s.notify_slab(1, 511, [1, 2], 1)
    return s


@bad("notify-slab of epoch 3: position 514, the ring ends before 514")
def bad_slab_empty_frees():
    s = slab_started("S")
    slab_epoch(s, 1)
    s.commit(2)
    s.ack(2)
    s.applied(2)
    s.notify_slab(1, 513, [1, 2], 3)
    return s


@bad("notify-slab of epoch 1: position 1 was told before")
def bad_slab_told_twice():
    s = slab_started("S")
    s.ring_pages(1, [1, 2], 1)
    s.notify_slab(1, 1, [2], 1)
    return s


@bad("notify-slab of epoch 2: position 5 is not behind those of epoch 1")
def bad_slab_behind():
    s = slab_started()
    s.position = 10
    s.ring_pages(1, [1], 1)
    s.position = 2
    s.ring_pages(2, [2, 3], 1)
    s.position = 5
    s.ring_pages(2, [1], 2)
    return s


@bad("notify-slab of epoch 1: position 12 is not before those of epoch 2")
def bad_slab_before():
    s = slab_started()
    s.position = 10
    s.ring_pages(1, [1], 2)
    s.position = 14
    s.ring_pages(1, [3], 2)
    s.position = 12
    s.ring_pages(2, [2], 1)
    return s


@bad("notify-slab of epoch 1: position 3 is not behind those told before on its lane")
def bad_slab_descending():
    s = slab_started()
    s.position = 10
    s.ring_pages(1, [1], 1)
    s.position = 3
    s.ring_pages(1, [1], 1)
    return s


@bad("notify-slab of epoch 1: position 1 was not written on lane 1")
def bad_slab_unwritten():
    s = slab_started()
    s.write_ring(1, 0, [1], 1)
    s.write_ring(2, 1, [2], 1)
    s.notify_slab(1, 0, [1, 2], 1)
    return s


@bad("commit of epoch 1: position 1 was written on lane 1 and not told")
def bad_slab_untold():
    s = slab_started(credits=1)
    s.write_ring(1, 0, [1, 2], 1)
    s.notify_slab(1, 0, [1], 1)
    s.commit(1)
    return s


@bad("commit of epoch 1: position 1 was written on lane 2 and not told")
def bad_slab_untold_between():
    s = slab_started()
    s.ring_pages(1, [1], 1)
    s.write_ring(2, 1, [2], 1)
    s.position = 2
    s.ring_pages(1, [3], 1)
    s.commit(1)
    return s


@bad("commit of epoch 2: position 1 was written on lane 2 and not told")
def bad_slab_untold_later():
    s = slab_started(credits=2)
    s.ring_pages(1, [1], 1)
    s.write_ring(2, 1, [2], 1)
    s.commit(1)
    s.commit(2)
    return s


@bad("notify-slab of epoch 3: position 2 was written when only epoch 0 was applied")
def bad_slab_written_early():
    s = slab_started(credits=2)
    s.write_ring(2, 2, [1], 1)
    slab_epoch(s, 1)
    s.notify_slab(2, 2, [1], 3)
    return s


@bad("write: epoch 1 is not applied yet")
def bad_slab_write_early():
    s = slab_started(credits=2)
    s.commit(1)
    s.commit(2)
    s.ack(1)
    s.write_ring(1, 0, [1], 3)
    return s


@bad("notify-slab of epoch 1: digest of its pages is")
def bad_slab_page_digest():
    s = slab_started(payload=True)
    s.write_ring(1, 0, [1, 2], 1)
    s.notify_slab(1, 0, [2, 3], 1)
    return s


@bad("notify-slab of epoch 1: page 1 was told on lane 1, and now on lane 2")
def bad_slab_lane_change():
    s = slab_started()
    s.ring_pages(1, [1], 1)
    s.ring_pages(2, [1], 1)
    return s


@bad("notify-slab of epoch 1: on lane 0")
def bad_slab_lane():
    s = slab_started()
    s.notify_slab(0, 0, [1], 1)
    return s


@bad("notify-slab of epoch 1: run 0: page 99 or one behind it lies in no region")
def bad_slab_gap_page():
    s = slab_started("S")
    s.notify_slab(1, 0, [99, 100], 1)
    return s


@bad("notify-slab of epoch 1: 4 pages announced, its runs have 3", 1)
def bad_slab_runs_sum():
    s = slab_started()
    b = bytearray(runs([[1, 2], [4, 1]], 0, bytes(8)))
    b[7] = 4
    s.send("P", 1, SLAB, bytes(b), 1)
    return s


@bad("notify-slab of epoch 1: its length and its counts do not agree", 1)
def bad_slab_short():
    s = slab_started()
    s.send("P", 1, SLAB, runs([[1, 2], [4, 1]], 0), 1)
    return s


@bad("zero-pages of epoch 3: only epoch 0 is applied")
def bad_slab_future():
    s = slab_started(credits=2)
    s.zero_pages(1, [1], 3)
    return s


@bad("zero-pages of epoch 1: behind a record of epoch 2 on its lane")
def bad_slab_lane_epoch():
    s = slab_started()
    s.zero_pages(1, [1], 2)
    s.zero_pages(1, [2], 1)
    return s


@bad("commit of epoch 1: record 2 of lane 1 is of epoch 2")
def bad_slab_commit_seq():
    s = slab_started()
    s.zero_pages(1, [1], 1)
    s.swap()
    s.zero_pages(1, [1], 2)
    s.swap()
    s.commit(1)
    return s


@bad("zero-pages of epoch 2: number 1, which the commit of epoch 1 names as its own")
def bad_slab_commit_names():
    s = slab_started("S")
    s.zero_pages(1, [1], 1)
    s.commit(1, seqs=[1, 1, 0, 0, 0, 0, 0, 0])
    s.zero_pages(2, [2], 2)
    return s


@bad("commit of epoch 2: epoch 1 was expected")
def bad_slab_commit_order():
    s = slab_started()
    s.zero_pages(1, [1], 2)
    s.commit(2)
    return s


@bad("commit of epoch 2: 1 data pages told, 2 announced")
def bad_slab_second_whole():
    s = slab_started("S")
    s.ring_pages(2, [50], 1)
    late = s.last
    del s.out[-(48 + len(late)):]
    s.commit(1)
    s.ring_pages(1, [10], 2)
    s.commit(2, data=1)
    s.message("P", 2, late)
    return s


@bad("ack of epoch 2: epoch 1 was expected")
def bad_slab_ack_order():
    s = slab_started()
    s.commit(1)
    s.commit(2)
    s.ack(2)
    return s


@bad("side-data of epoch 2: only epoch 0 is acknowledged")
def bad_slab_side_early():
    s = slab_started(needed=1)
    s.side_data(b"first", 1)
    s.commit(1)
    s.side_data(b"second", 2)
    return s


# ---- deltas ----


def delta_started(caps=2, epochs=1, **k):
    s = Stream(**k)
    s.begin(hello(needed=caps), ack=hello_ack(caps=caps))
    for epoch in range(1, epochs + 1):
        s.whole_epoch(epoch)
    return s


@bad("notify-delta of epoch 1: no epoch is applied yet")
def bad_delta_first():
    s = delta_started(epochs=0)
    s.deltas(1, [1], 1)
    return s


@bad("notify-delta of epoch 2: hello named no deltas")
def bad_delta_unasked():
    s = delta_started(caps=0)
    s.deltas(1, [1], 2)
    return s


@bad("notify-delta of epoch 1: the placement is slab")
def bad_delta_slab():
    s = slab_started(needed=2)
    s.deltas(1, [1], 1)
    return s


@bad("notify-delta of epoch 2: digest of its pages is")
def bad_delta_digest():
    s = delta_started()
    s.deltas(1, [1, 2], 2, off=1)
    return s


@bad("notify-delta of epoch 2: page 1 is not behind the one before", 1)
def bad_delta_order():
    s = delta_started()
    s.deltas(1, [2, 1], 2)
    return s


@bad("notify-delta of epoch 2: page 100 lies in no region")
def bad_delta_region():
    s = delta_started()
    s.deltas(1, [100], 2)
    return s


@bad("notify-delta of epoch 2: its length and its counts do not agree", 1)
def bad_delta_count():
    s = delta_started()
    s.tell_deltas(1, whole_delta(1, 2) + whole_delta(2, 2), 1, page_digest(1, 2), 2)
    return s


@bad("notify-delta of epoch 2: its length and its counts do not agree", 1)
def bad_delta_cut():
    s = delta_started()
    s.tell_deltas(1, whole_delta(1, 2)[:-4], 1, page_digest(1, 2), 2)
    return s


@bad("notify-delta of epoch 2: a line without a word that differs", 1)
def bad_delta_line():
    s = delta_started()
    s.tell_deltas(1, struct.pack(">QQH", 1, 1, 0), 1, page_digest(1, 1), 2)
    return s


@bad("notify-delta of epoch 2: reserved field is not 0", 1)
def bad_delta_reserved():
    s = delta_started()
    s.tell_deltas(1, whole_delta(1, 2), 1, page_digest(1, 2), 2, reserved=1)
    return s


@bad("commit of epoch 2: 1 data pages told, 2 announced")
def bad_delta_data_count():
    s = delta_started()
    s.deltas(1, [1], 2)
    s.commit(2, data=1)
    return s


# ---- page-checks ----


def checks_started(caps=4):
    s = Stream()
    s.begin(hello(needed=caps), ack=hello_ack(caps=caps))
    return s


@bad("page-checks of epoch 1: hello named none")
def bad_checks_unasked():
    s = checks_started(caps=0)
    s.checks(1, [1], 1)
    return s


@bad("page-checks of epoch 1: reserved field is not 0", 1)
def bad_checks_reserved():
    s = checks_started()
    s.checks(1, [1], 1, reserved=1)
    return s


@bad("page-checks of epoch 1: its length and its counts do not agree", 1)
def bad_checks_length():
    s = checks_started()
    s.checks(1, [1], 1, more=b"four")
    return s


@bad("notify-write of epoch 1: page 1 is not what page-checks say")
def bad_checks_page():
    s = checks_started()
    s.checks(1, [1], 1, off=1)
    s.data_pages(1, [1], 1)
    return s


@bad("notify-write of epoch 1: it tells 2 pages, the page-checks in front were of 1 of epoch 1")
def bad_checks_count():
    s = checks_started()
    s.checks(1, [1], 1)
    s.data_pages(1, [1, 2], 1)
    return s


@bad("zero-pages of epoch 1: behind page-checks, which nothing told")
def bad_checks_zero():
    s = checks_started()
    s.checks(1, [1], 1)
    s.zero_pages(1, [1], 1)
    return s


@bad("commit of epoch 1: page-checks that nothing told")
def bad_checks_end():
    s = checks_started()
    s.data_pages(1, [1], 1)
    s.checks(1, [1], 1)
    s.commit(1)
    return s


# ---- resync ----


@bad("base: no resync is in use")
def bad_base_unasked():
    return resync_started(caps=0)


@bad("base: a second one")
def bad_base_again():
    s = resync_started()
    s.base(2)
    return s


@bad("base: connection 2 goes on from connection 2", 1)
def bad_base_itself():
    return resync_started(connection=2, base=2, base_epoch=1)


@bad("base: epoch 0 of connection 1", 1)
def bad_base_epoch():
    return resync_started(connection=2, base=1)


@bad("base-ack: epoch 7, and there is no base")
def bad_base_ack_unasked():
    return resync_started(held=7)


@bad("base-ack: epoch 2, the base's is 3")
def bad_base_ack_old():
    return resync_started(connection=2, base=1, base_epoch=3, held=2)


@bad("notify-write of epoch 1: before base-ack")
def bad_base_late():
    s = Stream()
    s.begin(hello(offered=8), ack=hello_ack(caps=8))
    s.base(1)
    s.data_pages(1, [1], 1)
    return s


def main(folder):
    lines = []
    for function in (good_primary, good_secondary, good_refused, good_busy, good_empty, good_no_payload, good_side, good_side_refused,
                     good_slab, good_slab_long, good_slab_secondary, good_delta, good_checks, good_resync):
        lines.append((function.__name__, function(), 0, "ok: "))
    for function, status, sentence in BAD:
        lines.append((function.__name__, function(), status, sentence))
    with open(os.path.join(folder, "index"), "w", encoding="ascii") as index:
        for name, stream, status, sentence in lines:
            name = name.replace("_", "-") + ".ftrec"
            with open(os.path.join(folder, name), "wb") as file:
                file.write(stream.out)
            index.write("%s\t%d\t%s\n" % (name, status, sentence))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: make_golden.py FOLDER")
    main(sys.argv[1])
