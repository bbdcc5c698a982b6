#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""verify_stream.py - does a recorded stream keep to docs/protocol.md?

    verify_stream.py FILE...        a sentence per file; exit status 0 all do, 1 one does not, 2 usage

Written from the document alone, in another language than the library and sharing nothing with it, so that a mistake
in one of the two shows.  What each check demands is a sentence of the document.  Standard library only.
"""
import struct
import sys
import zlib

from xxh3 import xxh3

PAGE = 4096
M32 = 0xFFFFFFFF
M64 = 0xFFFFFFFFFFFFFFFF

# type: (name, shortest body, longest body, has an epoch: yes, no, any; from; lanes)
RECORDS = {
    0x01: ("hello", 112, 112 + 16383 + 127, "no", "primary", "0"),  # FTW_HELLO
    0x02: ("hello-ack", 40, 40, "no", "secondary", "0"),  # FTW_HELLO_ACK
    0x03: ("refuse", 8, 408, "any", "secondary", "0"),  # FTW_REFUSE
    0x04: ("regions", 40, 65512, "no", "primary", "0"),  # FTW_REGIONS
    0x05: ("base", 24, 24, "no", "primary", "0"),  # FTW_BASE
    0x06: ("base-ack", 8, 8, "no", "secondary", "0"),  # FTW_BASE_ACK
    0x10: ("notify-write", 32, 16 + 16 * 2048, "yes", "primary", "data"),  # FTW_NOTIFY_WRITE
    0x11: ("zero-pages", 32, 16 + 16 * 2048, "yes", "primary", "data"),  # FTW_ZERO_PAGES
    0x12: ("device-state", 17, 16 + 65408, "yes", "primary", "1"),  # FTW_DEVICE_STATE
    0x13: ("commit", 80, 80, "yes", "primary", "0"),  # FTW_COMMIT
    0x14: ("side-data", 9, 8 + 65504, "yes", "primary", "1"),  # FTW_SIDE_DATA
    0x15: ("notify-slab", 40, 24 + 16 * 2048, "yes", "primary", "data"),  # FTW_NOTIFY_SLAB
    0x16: ("notify-delta", 32, 16 + 65496, "yes", "primary", "data"),  # FTW_NOTIFY_DELTA
    0x17: ("page-checks", 12, 8 + 4 * 2048, "yes", "primary", "data"),  # FTW_PAGE_CHECKS
    0x20: ("ack", 0, 0, "yes", "secondary", "0"),  # FTW_ACK
    0x21: ("applied", 0, 0, "yes", "secondary", "0"),  # FTW_APPLIED
    0x22: ("working", 0, 0, "yes", "secondary", "0"),  # FTW_WORKING
    0x23: ("room", 16, 16, "no", "secondary", "0"),  # FTW_ROOM
    0x30: ("heartbeat", 16, 16, "no", "both", "0"),  # FTW_HEARTBEAT
    0x31: ("bye", 8, 408, "any", "both", "0"),  # FTW_BYE
    0x32: ("error", 8, 408, "any", "both", "0"),  # FTW_ERROR
    0x80000001: ("sync-progress", 24, 24, "any", "primary", "0"),  # FTW_SYNC_PROGRESS
}
OPTIONAL = 0x80000000  # FTW_OPTIONAL: the bit
SIDE_STREAM, DELTA, PAGE_CHECKS, RESYNC = 1, 2, 4, 8  # the capabilities


class Bad(Exception):
    """The stream breaks a rule."""


def need(condition, text, *args):
    if not condition:
        raise Bad(text % args)


def printable(octets, also=b""):
    return all(0x20 <= o <= 0x7E or o in also for o in octets)


# ---- the file ----------------------------------------------------------------------------------


class Entry:
    def __init__(self, connection, kind, direction, lane, time_ns, offset, window, write_bytes, payload):
        self.connection, self.kind, self.direction = connection, kind, direction
        self.lane, self.time_ns = lane, time_ns
        self.offset, self.window, self.write_bytes, self.payload = offset, window, write_bytes, payload


class Recording:
    """The entries of a file; at is the offset of the entry under way."""

    def __init__(self, file):
        self.file = file
        self.at = 0
        head = file.read(16)
        need(len(head) == 16, "cut off in the head of the file")
        magic, version, flags = struct.unpack(">8sII", head)
        need(magic == b"ft-strea", "not a recorded stream")
        need(version == 1, "recording of version %d", version)
        need(flags & ~1 == 0, "unknown flags in the head of the file")
        self.payload = bool(flags & 1)

    def __iter__(self):
        end, last_ns = 16, 0
        while True:
            self.at = end
            head = self.file.read(48)
            if not head:
                return
            need(len(head) == 48, "cut off in an entry")
            mark, crc, kind, direction, lane, time_ns, offset, window, write_bytes, n, connection = struct.unpack(
                ">4sIHHIQQIIII", head)
            need(mark == b"ften", "no entry begins here")
            need(1 <= kind <= 4, "entry of unknown kind %d", kind)
            need(direction in ((1, 2) if kind <= 2 else (0,)), "entry with direction %d", direction)
            need(lane <= (8 if kind <= 2 else 0), "entry with lane %d", lane)
            need(connection, "entry without the number of a connection")
            if kind == 2:
                need(window <= 15 and 1 <= write_bytes <= 4194304, "write with window or length out of range")
                need(n == (write_bytes if self.payload else 0), "write with %d octets of payload", n)
            else:
                need(offset == window == write_bytes == 0, "entry with fields of a write")
                need(1 <= n <= 65536 if kind == 1 else n <= 512, "entry with %d octets of payload", n)
            body = self.file.read((n + 7) & ~7)
            need(len(body) == (n + 7) & ~7, "cut off in an entry")
            need(not any(body[n:]), "padding of an entry is not zeros")
            need(zlib.crc32(body[:n], zlib.crc32(head[8:])) == crc, "checksum of an entry is wrong")
            need(time_ns >= last_ns, "time of an entry is before that of the one in front")
            last_ns = time_ns
            end += 48 + len(body)
            yield Entry(connection, kind, direction, lane, time_ns, offset, window, write_bytes, body[:n])


# ---- one connection ----------------------------------------------------------------------------


class Epoch:
    def __init__(self):
        self.data_pages = self.zero_pages = self.side_bytes = self.digest = 0
        self.state, self.state_total = bytearray(), None
        self.lane_of = {}  # page: lane on which it was told
        self.first, self.last = {}, {}  # lane: first and last number of its records
        self.commit = None


class Written:
    """A position of the ring that was written and not told yet."""

    def __init__(self, lane, octets, applied):
        self.lane, self.octets, self.applied = lane, octets, applied


class Ring:
    """Window 1, as both sides know it.  What lies below freed is forgotten."""

    def __init__(self, slots):
        self.slots, self.freed = slots, 0
        self.written = {}  # position: Written
        self.told = {}  # position: epoch
        self.span = {}  # epoch that is not applied: [its first position, behind its last one]
        self.lane_end = {}  # lane: behind the last position told there

    def end(self):
        return self.freed + self.slots

    def at(self, slot):
        """The position that a write to this slot can only mean."""
        return self.freed + (slot - self.freed) % self.slots

    def write(self, lane, first, octets, applied):
        for position in range(first, first + len(octets)):
            need(position not in self.written and position not in self.told, "write: position %d was written before", position)
            self.written[position] = Written(lane, octets[position - first], applied)

    def may_tell(self, what, epoch, lane, first, end):
        need(first >= self.freed, "%s: position %d, only those from %d on are in the ring", what, first, self.freed)
        need(end <= self.end(), "%s: position %d, the ring ends before %d", what, end - 1, self.end())
        for position in range(first, end):
            need(position not in self.told, "%s: position %d was told before", what, position)
        for other, (low, high) in self.span.items():
            need(other >= epoch or first >= high, "%s: position %d is not behind those of epoch %d", what, first, other)
            need(other <= epoch or end <= low, "%s: position %d is not before those of epoch %d", what, end - 1, other)
        need(first >= self.lane_end.get(lane, 0), "%s: position %d is not behind those told before on its lane", what,
             first)

    def tell(self, epoch, lane, first, end):
        self.told.update((position, epoch) for position in range(first, end))
        low, high = self.span.get(epoch, (first, end))
        self.span[epoch] = [min(low, first), max(high, end)]
        self.lane_end[lane] = end

    def free(self, end):
        for position in [p for p in self.told if p < end]:
            del self.told[position]
        self.freed = max(self.freed, end)

    def applied(self, epoch):
        """Frees up to the end of its last position; an epoch without any frees nothing."""
        self.free(self.span.pop(epoch, (0, 0))[1])


class Connection:
    """What both sides know; every record is checked against it."""

    def __init__(self):
        self.primary_direction = None  # in which hello went
        self.seq = {}  # (direction, lane): last number
        self.ended = set()  # directions
        self.hello = self.hello_ack = self.regions = None
        self.refused = False
        self.epochs = {}
        self.committed = self.whole = self.acked = self.applied = 0
        self.lane_epoch = {}  # lane: epoch of its last record
        self.content = {}  # page: as it was told last, None where that is not in the file; mirror placement with deltas only
        self.base = None  # connection, base_connection, base_epoch, once it was named
        self.held = None  # what base-ack said
        self.checks = {}  # lane: epoch and checks of the pages that its next record tells
        self.untold = {}  # (lane, page): payload, written to window 0 but not told yet
        self.ring = None  # from the first room on
        self.writes_recorded = False
        self.repeated = 0
        self.pages = self.zeros = self.checked_pages = 0
        self.under_way_most = self.freed_by_rooms = 0

    # -- head --

    def message(self, entry):
        m = entry.payload
        need(len(m) >= 24, "record: message of %d octets", len(m))
        kind, n, epoch, seq, reserved = struct.unpack_from(">IIQII", m)
        name, low, high, has_epoch, sender, lanes = RECORDS.get(kind, ("record 0x%x" % kind, 0, 65512, "any", "both", "any"))
        self.what = "%s of epoch %d" % (name, epoch) if epoch else name
        need(len(m) == (24 + n + 7) & ~7, "%s: body of %d octets in a message of %d", self.what, n, len(m))
        need(low <= n <= high, "%s: body of %d octets", self.what, n)
        need(reserved == 0, "%s: reserved field of the head is not 0", self.what)
        need(not any(m[24 + n:]), "%s: padding is not zeros", self.what)
        need(kind in RECORDS or kind & OPTIONAL, "%s: unknown and not optional", self.what)
        need(has_epoch != "yes" or epoch, "%s: no epoch", self.what)
        need(has_epoch != "no" or not epoch, "%s: an epoch where there is none", self.what)
        if self.repetition(entry, seq):
            return
        if entry.lane and entry.direction in self.ended:
            return  # on its way when the side said its last word: without effect
        self.order(entry, kind, sender, lanes)
        handler = getattr(self, "on_" + name.replace("-", "_"), None) if kind in RECORDS else None
        if handler:
            handler(entry, epoch, seq, m[24:24 + n])

    def repetition(self, entry, seq):
        at = (entry.direction, entry.lane)
        step = (seq - self.seq.get(at, 0)) & M32
        if step == 1:
            self.seq[at] = seq
            return False
        need(step == 0 or step >= 1 << 31, "%s: number %d on lane %d, %d was expected", self.what, seq, entry.lane,
             (self.seq.get(at, 0) + 1) & M32)
        need(entry.direction == 2, "%s: number %d on lane %d was sent before", self.what, seq, entry.lane)
        self.repeated += 1
        return True

    def order(self, entry, kind, sender, lanes):
        need(entry.direction not in self.ended, "%s: behind the last record of its side", self.what)
        if self.primary_direction is None:
            need(kind == 0x01, "%s: before hello", self.what)
            self.primary_direction = entry.direction
        side = "primary" if entry.direction == self.primary_direction else "secondary"
        need(sender in (side, "both"), "%s: sent by the %s", self.what, side)
        if lanes != "any":
            need((entry.lane == 0) == (lanes == "0"), "%s: on lane %d", self.what, entry.lane)
            need(lanes != "1" or entry.lane == 1, "%s: on lane %d", self.what, entry.lane)
        need(not self.hello or entry.lane <= self.hello["lanes"], "%s: on lane %d of %d", self.what, entry.lane,
             self.hello and self.hello["lanes"])
        need(entry.lane not in self.checks or kind in (0x10, 0x15, 0x16) or kind not in RECORDS,
             "%s: behind page-checks, which nothing told", self.what)
        if kind in (0x31, 0x32):
            return
        if kind == 0x01:
            need(self.hello is None, "%s: a second one", self.what)
        elif kind == 0x04:
            need(self.hello and self.regions is None, "%s: not behind hello", self.what)
        elif kind in (0x02, 0x03):
            need(self.hello_ack is None, "%s: hello was answered already", self.what)
            need(kind == 0x03 or self.regions, "%s: before regions", self.what)
        else:
            need(self.hello_ack, "%s: before hello-ack", self.what)
            need(kind == 0x23 or side == "primary" or not self.slab() or self.ring, "%s: before the first room", self.what)

    def slab(self):
        return self.hello["placement"] == 2

    # -- start and end --

    def on_hello(self, entry, epoch, seq, b):
        (magic, vmin, vmax, placement, mode, needed, offered, _session, _generation, _committed, nr_pages, state_max,
         page, chunk, lanes, beat, misses, identity, name, reserved) = struct.unpack_from(">8sHHHHQQ16sQQQQIIIIIIII", b)
        need(magic == b"ft-recor", "hello: no magic number")
        need(1 <= vmin <= vmax, "hello: versions %d to %d", vmin, vmax)
        need(placement in (1, 2), "hello: placement %d", placement)
        need(mode in (1, 2), "hello: mode %d", mode)
        need(nr_pages and nr_pages % 64 == 0 and nr_pages <= 1 << 51, "hello: %d pages", nr_pages)
        need(page == PAGE, "hello: pages of %d octets", page)
        need(chunk >= page and chunk & (chunk - 1) == 0, "hello: chunks of %d octets", chunk)
        need(1 <= lanes <= 8, "hello: %d data lanes", lanes)
        need(1 <= beat <= 60000 and 1 <= misses <= 1000, "hello: heartbeat of %d ms, %d misses", beat, misses)
        need(identity <= 16383 and name <= 127, "hello: identity of %d and name of %d octets", identity, name)
        need(reserved == 0, "hello: reserved field is not 0")
        need(len(b) == 112 + identity + name, "hello: its length and its counts do not agree")
        need(printable(b[112:112 + identity], b"\t\n"), "hello: identity is not printable")
        need(printable(b[112 + identity:]), "hello: name is not printable")
        self.hello = dict(versions=(vmin, vmax), placement=placement, needed=needed, offered=offered, nr_pages=nr_pages,
                          state_max=state_max, lanes=lanes, beat=beat, misses=misses)

    def on_hello_ack(self, entry, epoch, seq, b):
        version, placement, credits, caps, _generation, _committed, beat, misses = struct.unpack(">HHIQQQII", b)
        h = self.hello
        need(h["versions"][0] <= version <= h["versions"][1], "hello-ack: version %d was not offered", version)
        need(placement == h["placement"], "hello-ack: placement %d was not asked for", placement)
        need(1 <= credits <= (1 if placement == 1 else 8), "hello-ack: %d epoch credits", credits)
        need(caps & h["needed"] == h["needed"], "hello-ack: a needed capability is not in use")
        need(caps & ~(h["needed"] | h["offered"]) == 0, "hello-ack: a capability in use was not offered")
        need(h["beat"] <= beat <= 60000 and h["misses"] <= misses <= 1000, "hello-ack: heartbeat of %d ms, %d misses", beat,
             misses)
        self.hello_ack = dict(credits=credits, caps=caps)

    def on_base(self, entry, epoch, seq, b):
        need(self.hello_ack["caps"] & RESYNC, "%s: no resync is in use", self.what)
        need(self.base is None, "%s: a second one", self.what)
        self.base = connection, base, base_epoch = struct.unpack(">QQQ", b)
        need(base < connection, "%s: connection %d goes on from connection %d", self.what, connection, base)
        need((base == 0) == (base_epoch == 0), "%s: epoch %d of connection %d", self.what, base_epoch, base)

    def on_base_ack(self, entry, epoch, seq, b):
        need(self.base, "%s: no base was named", self.what)
        need(self.held is None, "%s: a second one", self.what)
        (self.held,) = struct.unpack(">Q", b)
        need(self.held == 0 or self.base[1], "%s: epoch %d, and there is no base", self.what, self.held)
        need(self.held == 0 or self.held >= self.base[2], "%s: epoch %d, the base's is %d", self.what, self.held, self.base[2])

    def on_regions(self, entry, epoch, seq, b):
        count, reserved = struct.unpack_from(">II", b)
        need(1 <= count <= 1024, "regions: %d regions", count)
        need(reserved == 0, "regions: reserved field is not 0")
        at, end, regions, names = 8, 0, [], set()
        for i in range(count):
            need(at + 24 <= len(b), "regions: its length and its counts do not agree")
            first, length, flags, n = struct.unpack_from(">QQII", b, at)
            need(first % 64 == 0 and first >= end, "region %d: begins at page %d", i, first)
            need(length and length % PAGE == 0, "region %d: %d octets", i, length)
            end = first + length // PAGE
            need(end <= self.hello["nr_pages"], "region %d: ends behind the page space", i)
            need(flags == 0, "region %d: flags are not 0", i)
            need(1 <= n <= 127, "region %d: name of %d octets", i, n)
            padded = (n + 7) & ~7
            need(at + 24 + padded <= len(b), "regions: its length and its counts do not agree")
            name = b[at + 24:at + 24 + n]
            need(printable(name), "region %d: name is not printable", i)
            need(name not in names, "region %d: its name is taken", i)
            need(not any(b[at + 24 + n:at + 24 + padded]), "region %d: padding is not zeros", i)
            names.add(name)
            regions.append((first, end))
            at += 24 + padded
        need(at == len(b), "regions: its length and its counts do not agree")
        self.regions = regions

    def reason(self, entry, b):
        _code, n = struct.unpack_from(">II", b)
        need(n <= 400, "%s: reason of %d octets", self.what, n)
        need(len(b) == 8 + n, "%s: its length and its counts do not agree", self.what)
        need(printable(b[8:]), "%s: reason is not printable", self.what)
        self.ended.add(entry.direction)

    def on_refuse(self, entry, epoch, seq, b):
        self.reason(entry, b)
        self.refused = True

    def on_bye(self, entry, epoch, seq, b):
        self.reason(entry, b)

    def on_error(self, entry, epoch, seq, b):
        self.reason(entry, b)

    def on_sync_progress(self, entry, epoch, seq, b):
        need(epoch == 1, "sync-progress: of epoch %d", epoch)
        need(struct.unpack_from(">II", b)[1] == 0, "sync-progress: reserved field is not 0")

    # -- an epoch --

    def write(self, entry):
        need(self.hello_ack, "write: before hello-ack")
        need(entry.direction == self.primary_direction, "write: by the secondary")
        if entry.direction in self.ended:
            return
        need(1 <= entry.lane <= self.hello["lanes"], "write: on lane %d", entry.lane)
        need(entry.window == (1 if self.slab() else 0), "write: to window %d", entry.window)
        need(entry.offset % PAGE == 0 and entry.write_bytes % PAGE == 0, "write: not whole pages")
        first, nr = entry.offset // PAGE, entry.write_bytes // PAGE
        # It belongs to an epoch behind the last commit.
        earliest = self.committed + 1 - self.hello_ack["credits"]
        need(self.applied >= earliest, "write: epoch %d is not applied yet", earliest)
        self.writes_recorded = True
        octets = [entry.payload[i * PAGE:(i + 1) * PAGE] if entry.payload else None for i in range(nr)]
        if self.slab():
            self.write_ring(entry.lane, first, octets)
            return
        need(first + nr <= self.hello["nr_pages"], "write: outside of the page space")
        self.untold.update(((entry.lane, first + i), octets[i]) for i in range(nr))

    def write_ring(self, lane, slot, octets):
        need(self.ring, "write: before the first room")
        need(slot + len(octets) <= self.ring.slots, "write: over the end of the ring")
        first = self.ring.at(slot)
        need(first + len(octets) <= self.ring.end(), "write: position %d, the ring ends before %d", first + len(octets) - 1,
             self.ring.end())
        self.ring.write(lane, first, octets, self.applied)

    def under_way(self, entry, epoch, seq):
        """The epoch of a record that tells something of it."""
        lane = entry.lane
        need(self.held is not None or not self.hello_ack["caps"] & RESYNC, "%s: before base-ack", self.what)
        need(epoch > self.whole, "%s: epoch %d is over", self.what, self.whole)
        need(epoch >= self.lane_epoch.get(lane, 0), "%s: behind a record of epoch %d on its lane", self.what,
             self.lane_epoch.get(lane, 0))
        need(epoch <= self.applied + self.hello_ack["credits"], "%s: only epoch %d is applied", self.what, self.applied)
        e = self.epochs.setdefault(epoch, Epoch())
        if lane:
            need(e.commit is None or self.ahead(e.commit["seq"][lane - 1], seq) >= 0,
                 "%s: behind the last record that the commit names", self.what)
            for before, other in self.epochs.items():
                need(before >= epoch or other.commit is None or self.ahead(seq, other.commit["seq"][lane - 1]) > 0,
                     "%s: number %d, which the commit of epoch %d names as its own", self.what, seq, before)
            self.lane_epoch[lane] = epoch
            e.first.setdefault(lane, seq)
            e.last[lane] = seq
        return e

    @staticmethod
    def ahead(a, b):
        step = (a - b) & M32
        return step - (1 << 32) if step >= 1 << 31 else step

    def runs(self, b, at=16):
        """@at: where they begin."""
        count, nr_pages, digest = struct.unpack_from(">IIQ", b)
        need(1 <= count <= 2048, "%s: %d runs", self.what, count)
        need(1 <= nr_pages <= 2048, "%s: %d pages", self.what, nr_pages)
        need(len(b) == at + 16 * count, "%s: its length and its counts do not agree", self.what)
        pages, end = [], -1
        for i in range(count):
            first, nr, reserved = struct.unpack_from(">QII", b, at + 16 * i)
            need(reserved == 0, "%s: run %d: reserved field is not 0", self.what, i)
            need(1 <= nr <= 2048, "%s: run %d: %d pages", self.what, i, nr)
            need(first > end, "%s: run %d: page %d is not behind the run before and a gap", self.what, i, first)
            end = first + nr
            need(any(a <= first and end <= z for a, z in self.regions) or
                 all(any(a <= p < z for a, z in self.regions) for p in range(first, end)),
                 "%s: run %d: page %d or one behind it lies in no region", self.what, i, first)
            pages.extend(range(first, end))
        need(len(pages) == nr_pages, "%s: %d pages announced, its runs have %d", self.what, nr_pages, len(pages))
        return pages, digest

    def told(self, e, lane, pages):
        for page in pages:
            need(e.lane_of.setdefault(page, lane) == lane, "%s: page %d was told on lane %d, and now on lane %d", self.what,
                 page, e.lane_of[page], lane)

    def on_page_checks(self, entry, epoch, seq, b):
        need(self.hello["needed"] & PAGE_CHECKS, "%s: hello named none", self.what)
        self.under_way(entry, epoch, seq)
        count, reserved = struct.unpack_from(">II", b)
        need(1 <= count <= 2048, "%s: %d pages", self.what, count)
        need(reserved == 0, "%s: reserved field is not 0", self.what)
        need(len(b) == 8 + 4 * count, "%s: its length and its counts do not agree", self.what)
        self.checks[entry.lane] = epoch, struct.unpack_from(">%dI" % count, b, 8)

    def checked(self, lane, epoch, pages, octets):
        """What page-checks in front of it said, if there were any."""
        said, checks = self.checks.pop(lane, (epoch, None))
        if checks is None:
            return
        need(said == epoch and len(checks) == len(pages), "%s: it tells %d pages, the page-checks in front were of %d of epoch %d",
             self.what, len(pages), len(checks), said)
        for page, o, check in zip(pages, octets, checks):
            need(o is None or xxh3(o, page) & M32 == check, "%s: page %d is not what page-checks say", self.what, page)

    def data_pages(self, e, lane, epoch, pages, octets, digest):
        """@octets: of each page, None where they are not in the file."""
        self.checked(lane, epoch, pages, octets)
        if all(octets):
            total = sum(xxh3(o, page) for page, o in zip(pages, octets)) & M64
            need(total == digest, "%s: digest of its pages is %016x, not %016x", self.what, total, digest)
            self.checked_pages += len(pages)
        e.data_pages += len(pages)
        e.digest += digest
        self.pages += len(pages)

    def on_notify_write(self, entry, epoch, seq, b):
        need(not self.slab(), "%s: the placement is slab", self.what)
        e = self.under_way(entry, epoch, seq)
        pages, digest = self.runs(b)
        self.told(e, entry.lane, pages)
        octets = [None] * len(pages)
        if self.writes_recorded or entry.direction == 1:
            for page in pages:
                need((entry.lane, page) in self.untold, "%s: page %d was not written on lane %d", self.what, page, entry.lane)
            octets = [self.untold.pop((entry.lane, page)) for page in pages]
        self.data_pages(e, entry.lane, epoch, pages, octets, digest)
        self.keep(pages, octets)

    def keep(self, pages, octets):
        if self.hello["needed"] & DELTA:
            self.content.update(zip(pages, octets))

    def delta(self, b, at, content):
        """Of the page whose delta begins there: how it is then, None if that cannot be known; and where the delta ends."""
        octets = None if content is None else bytearray(content)
        need(at + 8 <= len(b), "%s: its length and its counts do not agree", self.what)
        lines, at = struct.unpack_from(">Q", b, at)[0], at + 8
        for line in (i for i in range(64) if lines >> i & 1):
            need(at + 2 <= len(b), "%s: its length and its counts do not agree", self.what)
            words, at = struct.unpack_from(">H", b, at)[0], at + 2
            need(words, "%s: a line without a word that differs", self.what)
            for word in (i for i in range(16) if words >> i & 1):
                need(at + 4 <= len(b), "%s: its length and its counts do not agree", self.what)
                if octets is not None:
                    octets[64 * line + 4 * word:64 * line + 4 * word + 4] = b[at:at + 4]
                at += 4
        return octets and bytes(octets), at

    def on_notify_delta(self, entry, epoch, seq, b):
        need(not self.slab(), "%s: the placement is slab", self.what)
        need(self.hello["needed"] & DELTA, "%s: hello named no deltas", self.what)
        need(self.applied, "%s: no epoch is applied yet", self.what)
        e = self.under_way(entry, epoch, seq)
        count, reserved, digest = struct.unpack_from(">IIQ", b)
        need(1 <= count <= 2048, "%s: %d pages", self.what, count)
        need(reserved == 0, "%s: reserved field is not 0", self.what)
        pages, octets, at = [], [], 16
        for _ in range(count):
            need(at + 8 <= len(b), "%s: its length and its counts do not agree", self.what)
            (page,) = struct.unpack_from(">Q", b, at)
            need(not pages or page > pages[-1], "%s: page %d is not behind the one before", self.what, page)
            need(any(a <= page < z for a, z in self.regions), "%s: page %d lies in no region", self.what, page)
            made, at = self.delta(b, at + 8, self.content.get(page, None if self.held else bytes(PAGE)))
            pages.append(page)
            octets.append(made)
        need(at == len(b), "%s: its length and its counts do not agree", self.what)
        self.told(e, entry.lane, pages)
        self.data_pages(e, entry.lane, epoch, pages, octets, digest)
        self.keep(pages, octets)

    def on_notify_slab(self, entry, epoch, seq, b):
        need(self.slab(), "%s: the placement is mirror", self.what)
        need(self.ring, "%s: before the first room", self.what)
        e = self.under_way(entry, epoch, seq)
        pages, digest = self.runs(b, 24)
        self.told(e, entry.lane, pages)
        (first,) = struct.unpack_from(">Q", b, 16)
        end = first + len(pages)
        self.ring.may_tell(self.what, epoch, entry.lane, first, end)
        octets = [None] * len(pages)
        if self.writes_recorded or entry.direction == 1:
            octets = [self.take_written(epoch, entry.lane, position) for position in range(first, end)]
        self.ring.tell(epoch, entry.lane, first, end)
        self.data_pages(e, entry.lane, epoch, pages, octets, digest)

    def take_written(self, epoch, lane, position):
        written = self.ring.written.pop(position, None)
        need(written and written.lane == lane, "%s: position %d was not written on lane %d", self.what, position, lane)
        need(epoch <= written.applied + self.hello_ack["credits"], "%s: position %d was written when only epoch %d was applied",
             self.what, position, written.applied)
        return written.octets

    def on_room(self, entry, epoch, seq, b):
        need(self.slab(), "%s: the placement is mirror", self.what)
        slots, freed = struct.unpack(">QQ", b)
        need(512 <= slots <= 1 << 51, "%s: %d slots", self.what, slots)
        need(freed + slots <= M64, "%s: free up to position %d", self.what, freed)
        if self.ring is None:
            need(freed == 0, "%s: the first one, and free up to position %d", self.what, freed)
            self.ring = Ring(slots)
        need(slots == self.ring.slots, "%s: %d slots, and %d before", self.what, slots, self.ring.slots)
        for position in range(self.ring.freed, freed):
            need(self.ring.told.get(position) == self.applied + 1, "%s: position %d was not told in epoch %d", self.what, position,
                 self.applied + 1)
        self.freed_by_rooms += max(0, freed - self.ring.freed)
        self.ring.free(freed)

    def on_zero_pages(self, entry, epoch, seq, b):
        e = self.under_way(entry, epoch, seq)
        pages, digest = self.runs(b)
        self.told(e, entry.lane, pages)
        total = sum(xxh3(page.to_bytes(8, "big")) for page in pages) & M64
        need(total == digest, "%s: digest of its page numbers is %016x, not %016x", self.what, total, digest)
        e.zero_pages += len(pages)
        e.digest += digest
        self.keep(pages, [bytes(PAGE)] * len(pages))
        self.zeros += len(pages)

    def on_device_state(self, entry, epoch, seq, b):
        e = self.under_way(entry, epoch, seq)
        total, offset = struct.unpack_from(">QQ", b)
        need(total <= self.hello["state_max"], "%s: %d octets, hello said at most %d", self.what, total, self.hello["state_max"])
        need(e.state_total in (None, total), "%s: %d octets in all, and %d before", self.what, total, e.state_total or 0)
        need(offset == len(e.state), "%s: piece at offset %d, %d was expected", self.what, offset, len(e.state))
        need(offset + len(b) - 16 <= total, "%s: piece ends behind the state", self.what)
        e.state_total = total
        e.state += b[16:]

    def on_side_data(self, entry, epoch, seq, b):
        need(self.hello["needed"] & SIDE_STREAM, "%s: hello named no side stream", self.what)
        e = self.under_way(entry, epoch, seq)
        need(epoch <= self.acked + 1, "%s: only epoch %d is acknowledged", self.what, self.acked)
        (offset,) = struct.unpack_from(">Q", b)
        need(offset == e.side_bytes, "%s: piece at offset %d, %d was expected", self.what, offset, e.side_bytes)
        need(offset + len(b) - 8 < 1 << 63, "%s: ends behind 2^63", self.what)
        e.side_bytes += len(b) - 8
        e.digest += xxh3(b[8:], offset)

    def on_commit(self, entry, epoch, seq, b):
        need(epoch == self.committed + 1, "%s: epoch %d was expected", self.what, self.committed + 1)
        e = self.under_way(entry, epoch, seq)
        data, zero, state, side, digest, lanes, reserved, *seqs = struct.unpack(">QQQQQII8I", b)
        need(lanes == self.hello["lanes"], "%s: %d data lanes", self.what, lanes)
        need(reserved == 0, "%s: reserved field is not 0", self.what)
        need(not any(seqs[lanes:]), "%s: number of a lane that is not used", self.what)
        for lane, last in e.last.items():
            need(self.ahead(seqs[lane - 1], last) >= 0, "%s: lane %d is at record %d already, not %d", self.what, lane, last,
                 seqs[lane - 1])
        for behind, other in self.epochs.items():
            for lane, first in other.first.items():
                need(behind <= epoch or self.ahead(first, seqs[lane - 1]) > 0, "%s: record %d of lane %d is of epoch %d", self.what,
                     first, lane, behind)
        self.under_way_most = max(self.under_way_most, epoch - self.applied)
        e.commit = dict(data=data, zero=zero, state=state, side=side, digest=digest, seq=seqs)
        self.committed = epoch

    def settle(self):
        """Which epochs are whole now?  Tried after each record: lanes have no order between them, and one may complete several."""
        while self.next_is_complete():
            n = self.whole + 1
            self.check_commit(n, self.epochs[n])
            self.check_untold(n)
            need(all(epoch != n for epoch, _ in self.checks.values()), "commit of epoch %d: page-checks that nothing told", n)
            del self.epochs[n]
            self.whole = n

    def next_is_complete(self):
        e = self.epochs.get(self.whole + 1)
        return e and e.commit and all(
            self.ahead(self.seq.get((self.primary_direction, lane), 0), e.commit["seq"][lane - 1]) >= 0
            for lane in range(1, self.hello["lanes"] + 1))

    @staticmethod
    def check_commit(n, e):
        c = e.commit
        need(e.data_pages == c["data"], "commit of epoch %d: %d data pages told, %d announced", n, e.data_pages, c["data"])
        need(e.zero_pages == c["zero"], "commit of epoch %d: %d zero pages told, %d announced", n, e.zero_pages, c["zero"])
        need(len(e.state) == (e.state_total or 0) == c["state"], "commit of epoch %d: %d octets of device state came, %d announced",
             n, len(e.state), c["state"])
        need(e.side_bytes == c["side"], "commit of epoch %d: %d octets of the side stream came, %d announced", n, e.side_bytes,
             c["side"])
        digest = (e.digest + xxh3(bytes(e.state), len(e.state))) & M64
        need(digest == c["digest"], "commit of epoch %d: digest is %016x, not %016x", n, digest, c["digest"])

    def check_untold(self, n):
        for lane, page in self.untold:
            raise Bad("commit of epoch %d: page %d was written on lane %d and not told" % (n, page, lane))
        end = self.ring.span.get(n, (0, 0))[1] if self.ring else 0
        for position, w in self.ring.written.items() if self.ring else ():
            # It can be of no later epoch: it stands before a position of this one, or was written before a later one might be.
            need(position >= end and w.applied + self.hello_ack["credits"] > n,
                 "commit of epoch %d: position %d was written on lane %d and not told", n, position, w.lane)

    def on_ack(self, entry, epoch, seq, b):
        need(epoch == self.acked + 1, "%s: epoch %d was expected", self.what, self.acked + 1)
        need(epoch <= self.whole, "%s: before the epoch was whole", self.what)
        self.acked = epoch

    def on_applied(self, entry, epoch, seq, b):
        need(epoch == self.applied + 1, "%s: epoch %d was expected", self.what, self.applied + 1)
        need(epoch <= self.acked, "%s: before its ack", self.what)
        self.applied = epoch
        if self.ring:
            self.ring.applied(epoch)


def verify(path):
    """The closing sentence; raises Bad."""
    totals = dict(connections=0, committed=0, acked=0, applied=0, pages=0, zeros=0, checked=0, repeated=0, under_way=0, freed=0)
    with (sys.stdin.buffer if path == "-" else open(path, "rb")) as file:
        recording = None
        try:
            recording = Recording(file)
            live = {}
            for entry in recording:
                step(live, entry, totals)
            for connection in live.values():
                add(totals, connection)
        except Bad as bad:
            raise Bad("octet %d: %s" % (recording.at if recording else 0, bad)) from None
    return ("%(connections)d connections, %(committed)d epochs committed, %(acked)d acknowledged, %(applied)d applied; "
            "%(pages)d data pages (%(checked)d by their octets), %(zeros)d zero pages, %(repeated)d repeated records; "
            "%(under_way)d epochs under way at most, %(freed)d positions freed by rooms" % totals)


def step(live, entry, totals):
    """@live: the connections that are open, by number."""
    number = entry.connection
    if entry.kind in (3, 4):
        need(printable(entry.payload), "text of open or close is not printable")
    if entry.kind == 3:
        need(number == totals["connections"] + 1, "open: connection %d, %d was expected", number, totals["connections"] + 1)
        totals["connections"] = number
        live[number] = Connection()
        return
    need(number in live, "an entry of connection %d, which is not open", number)
    if entry.kind == 4:
        add(totals, live.pop(number))
    elif entry.kind == 2:
        live[number].write(entry)
    else:
        live[number].message(entry)
        live[number].settle()


def add(totals, c):
    totals["committed"] += c.whole
    totals["acked"] += c.acked
    totals["applied"] += c.applied
    totals["pages"] += c.pages
    totals["zeros"] += c.zeros
    totals["checked"] += c.checked_pages
    totals["repeated"] += c.repeated
    totals["under_way"] = max(totals["under_way"], c.under_way_most)
    totals["freed"] += c.freed_by_rooms


def main(argv):
    if len(argv) < 2 or argv[1] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if len(argv) > 1 else 2
    status = 0
    for path in argv[1:]:
        try:
            print("%s: ok: %s" % (path, verify(path)))
        except Bad as bad:
            print("%s: %s" % (path, bad))
            status = 1
        except OSError as error:
            print("%s: %s" % (path, error.strerror))
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv))
