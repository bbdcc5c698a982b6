# SPDX-License-Identifier: MIT
"""disks.py - a pair of hosts whose QEMU has two disks and no guest system, and the story of what was written to them: what run_disk and
run_disk_faults share.

The BIOS finds nothing to boot, and QEMU's monitor writes to the disks (qemu-io).  Writes are made one after the other, so the octets of the
standby's images must be those after the first n of them, for one n that holds for both disks, and n must take in all that was written before
a checkpoint was acknowledged.  The standby's images hold garbage before the first copy."""
import contextlib
import glob
import os
import random
import subprocess
import threading
import time

import machine as m
import vm

SIZES = [(8 << 20) + 512, 8 << 20]
FORMATS = ['raw', 'qcow2']
DEVICES = ['virtio0', 'ide0-hd0']
SEED = int(os.environ.get('FT_SEED', '0')) or int(time.time())


class Images:
    """The two images of one host."""

    def __init__(self, procs, host, sizes=SIZES):
        self.host, self.dir = host, procs.dir
        self.path = [os.path.join(procs.dir, '%s.%s' % (host, f)) for f in FORMATS]
        for path, fmt, size in zip(self.path, FORMATS, sizes):
            subprocess.run(['qemu-img', 'create', '-q', '-f', fmt, path, str(size)], check=True)

    def fill(self, byte):
        for path, fmt, size in zip(self.path, FORMATS, SIZES):
            subprocess.run(['qemu-io', '-f', fmt, '-c', 'write -P %d 0 %d' % (byte, size), path], check=True, stdout=subprocess.DEVNULL)
        return self

    def qemu(self):
        return ['qemu-system-x86_64', '-accel', 'tcg', '-nodefaults', '-no-user-config', '-display', 'none', '-m', '32M', '-no-reboot',
                '-drive', 'file=%s,format=raw,if=virtio,discard=unmap,cache=unsafe' % self.path[0],
                '-drive', 'file=%s,format=qcow2,if=ide,discard=unmap,cache=unsafe' % self.path[1],
                '-qmp', 'unix:%s,server=on,wait=off' % self.qmp_path()]

    def qmp_path(self):
        return os.path.join(self.dir, self.host + '.qmp')

    def log(self):
        """What QEMU said; results of qemu-io are there too."""
        with open(self.log_path(), encoding='utf-8', errors='replace') as f:
            return f.read()

    def log_path(self):
        return os.path.join(self.dir, self.host + '.qemu')

    def octets(self):
        if ' failed' in self.log():  # a line of qemu-io: the guest would have got an I/O error
            raise m.Failed('%s: %s' % (self.host, [line for line in self.log().splitlines() if ' failed' in line][:3]))
        out = []
        for path, fmt in zip(self.path, FORMATS):
            to = path + '.octets'
            subprocess.run(['qemu-img', 'convert', '-f', fmt, '-O', 'raw', path, to], check=True)
            with open(to, 'rb') as f:
                out.append(f.read())
        r = subprocess.run(['qemu-img', 'check', '-q', '-f', 'qcow2', self.path[1]], check=False)
        if r.returncode not in (0, 3):  # 3: leaked clusters, which a QEMU that was killed leaves
            raise m.Failed('%s: qemu-img check: %d' % (self.path[1], r.returncode))
        return out


def difference(image, octets, n):
    """(how many blocks of 512 differ, n, where the first is)."""
    count, first = 0, None
    for disk in range(2):
        for at in range(0, SIZES[disk], 512):
            a, b = image[disk][at:at + 512], octets[disk][at:at + 512]
            if a != b:
                count += 1
                first = first or (disk, at + next(i for i in range(512) if a[i] != b[i]))
    return (count, n, *first)


class Story:
    """What was written, in order: (disk, offset, length, byte).  The last of it may not have been done."""

    def __init__(self, seed):
        self.random, self.ops, self.lock, self.done = random.Random(seed), [], threading.Lock(), 0

    def next(self):
        r, disk = self.random, self.random.randrange(2)
        kind = r.randrange(10)
        if kind == 0:  # no discards: the mirror's filter ignores them (7.2), so what they do depends on when it came
            length = 65536 * r.randrange(1, 4)
            offset, byte = 65536 * r.randrange(SIZES[disk] // 65536 - 3), 0
            command = 'write -z -u %d %d' % (offset, length)
        elif kind == 1:
            length = r.choice([512, 4096, 100000, 300000])
            offset, byte = r.randrange(SIZES[disk] - length), 0
            command = 'write -z %d %d' % (offset, length)
        else:
            length = r.choice([1, 512, 512, 4096, 4096, 5000, 65536, 200000])
            area = r.choice([SIZES[disk], 256 << 10])  # some of it again and again
            offset, byte = r.randrange(min(area, SIZES[disk]) - length + 1), r.randrange(1, 256)
            command = 'write -P %d %d %d' % (byte, offset, length)
        return (disk, offset, length, byte), command

    def write(self, qmp):
        with self.lock:
            op, command = self.next()
            self.ops.append(op)
        qmp('human-monitor-command', command_line='qemu-io %s "%s"' % (DEVICES[op[0]], command))
        with self.lock:
            self.done = len(self.ops)

    def finished(self):
        with self.lock:
            return self.done

    def find(self, octets, at_least, what):
        """How many writes make @octets."""
        image, closest = [bytearray(size) for size in SIZES], None
        for n in range(len(self.ops) + 1):
            if n >= at_least and all(image[i] == octets[i] for i in range(2)):
                print('%s: the first %d of %d writes, at least %d' % (what, n, len(self.ops), at_least))
                return n
            if n >= at_least:
                closest = min(x for x in (closest, difference(image, octets, n)) if x)
            if n < len(self.ops):
                disk, offset, length, byte = self.ops[n]
                image[disk][offset:offset + length] = bytes([byte]) * length
        count, n, disk, at = closest
        told = [(i, op) for i, op in enumerate(self.ops) if op[0] == disk and op[1] <= at < op[1] + op[2]]
        raise m.Failed('%s: the images are no prefix of the %d writes that has at least %d (seed %d); closest is %d, %d blocks differ, as disk %d '
                       'at %d: 0x%02x, written there: %s' % (what, len(self.ops), at_least, SEED, n, count, disk, at, octets[disk][at], told[-8:]))

    def cut(self, n):
        """It goes on from what the standby had."""
        del self.ops[n:]
        self.done = n


class Writer:
    """Writes until it is told to end, or its QEMU dies."""

    def __init__(self, images, story):
        self.story, self.ending, self.failed = story, False, None
        self.qmp = m.Qmp(images.qmp_path())
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            while not self.ending:
                self.story.write(self.qmp)
        except m.Failed as why:
            if 'closed its monitor' not in str(why):
                self.failed = why
        except (OSError, ValueError):
            pass

    def until_more(self, n):
        target = self.story.finished() + n
        vm.until('%d more writes' % n, lambda: self.failed or self.story.finished() >= target or not self.thread.is_alive())
        if self.failed or self.story.finished() < target:
            raise m.Failed('writing has ended: %s' % self.failed)

    def end(self):
        self.ending = True
        self.thread.join(60)
        if self.failed:
            raise self.failed
        self.qmp.sock.close()
        with contextlib.suppress(OSError):  # a command that QEMU did not live to read is still in the buffer
            self.qmp.file.close()


def checkpoint(host, story):
    """How many writes are safe."""
    n = story.finished()
    for _ in range(50):
        if host.ctl('checkpoint'):
            return n
        time.sleep(0.1)
    raise m.Failed('no checkpoint: ' + host.said()[-2000:])


def end_well(host):
    status = host.end()
    if status != 0:
        raise m.Failed('%s: exit status %d: %s' % (host.log, status, host.said()[-3000:]))


def start(procs, build, role, images, *options):
    return vm.Vm(procs, build, role, ['--qemu-log', images.log_path(), *FAST, *options], images.qemu())


FAST = ['--heartbeat-misses', '12', '--reconnect', '100', '--interval', '30']


class Pair:
    def __init__(self, procs, build, name, prefill=0, b_options=(), a_options=()):
        self.procs, self.build, self.story = procs, build, Story('%d %s' % (SEED, name))
        self.a_images, self.b_images = Images(procs, name + '-a'), Images(procs, name + '-b').fill(0xee)
        self.b = start(procs, build, 'secondary', self.b_images, '--listen', '127.0.0.1:0', *b_options)
        self.address = self.b.address()
        self.a = start(procs, build, 'primary', self.a_images, '--secondary', self.address, *a_options)
        self.a.qemu_pid()
        self.writer = Writer(self.a_images, self.story)
        self.writer.until_more(30)  # the copy begins with something, and meets writes
        self.a.until_state('protected')

    def fail_over(self, what, at_least=0):
        """The primary's host dies at once; what the standby has."""
        if not at_least:
            at_least = checkpoint(self.a, self.story)
        self.writer.until_more(5)
        self.a.die()
        self.writer.end()
        self.b.promote()
        self.b.until_state('active')
        qmp = m.Qmp(self.b_images.qmp_path())
        for device in DEVICES:
            qmp('human-monitor-command', command_line='qemu-io %s "read 0 64k"' % device)
        if self.b_images.log().count('read 65536/65536') != 2:
            raise m.Failed('the promoted machine cannot read its disks: %s' % self.b_images.log())
        qmp.sock.close()
        qmp.file.close()
        end_well(self.b)
        return self.story.find(self.b_images.octets(), at_least, what)

def image_servers(host):
    """The qemu-nbd processes of a secondary."""
    children = [int(c) for f in glob.glob('/proc/%d/task/*/children' % host.process.pid) for c in open(f).read().split()]
    servers = [c for c in children if 'qemu-nbd' in open('/proc/%d/cmdline' % c).read()]
    if not servers:
        raise m.Failed('no qemu-nbd')
    return servers
