# SPDX-License-Identifier: MIT
"""ext4.py - what a file system check says about the image of a host, and which records of the disk writer (tools/guest/disk.c) are in it."""
import os
import re
import subprocess

import machine as m

HEAD, CONTENT_MAX, MASK = 16, 16384, (1 << 64) - 1

# What is normal after the power went: the journal is replayed; the counters in the superblock are brought up to date only when it is unmounted, and
# a file that was deleted while it was open is taken away.
NORMAL = re.compile(r'recovering journal|Clearing orphaned inode|Free (blocks|inodes) count wrong|Setting (free|overhead)|\d+/\d+ files|^\s*$')


def make(image, mib):
    with open(image, 'wb') as f:
        f.truncate(mib << 20)
    subprocess.run(['mkfs.ext4', '-q', '-F', image], check=True)


def run(*command):
    r = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace', check=False)
    return r.returncode, r.stdout


def repair(image, what):
    """Does what the next mount would do, and nothing else may be there to do; `image` is changed, so it should be a copy."""
    status, said = run('e2fsck', '-f', '-p', image)
    wrong = [line for line in said.splitlines() if not NORMAL.search(line)]
    if status not in (0, 1) or wrong:
        raise m.Failed('%s: e2fsck -p: %d: %s' % (what, status, said[-2000:]))
    status, said = run('e2fsck', '-f', '-n', image)
    if status:
        raise m.Failed('%s: e2fsck -n after the journal was replayed: %d: %s' % (what, status, said[-2000:]))


def mix(x):
    x = (x + 0x9e3779b97f4a7c15) & MASK
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & MASK
    x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
    return x ^ x >> 31


def content(n):
    """Of record n, as disk.c makes it."""
    w = mix(n)
    length, step = 1 + w % CONTENT_MAX, w | 1
    return bytes((w + i * step & MASK) >> 56 for i in range(length))


def records(image, acknowledged, what):
    """The file of the disk writer has the records 1, 2, ... up to at least `acknowledged`; the last ten, and some others, are looked at octet by
    octet.  Behind them may be a part of one that nobody was told of.  How many there are."""
    out = image + '.records'
    status, said = run('debugfs', '-R', 'dump /records ' + out, image)
    try:
        with open(out, 'rb') as f:
            data = f.read()
        os.unlink(out)
    except FileNotFoundError:
        raise m.Failed('%s: no records: debugfs: %d: %s' % (what, status, said)) from None
    at, n, starts = 0, 0, []
    while at + HEAD <= len(data):
        length = 1 + mix(n + 1) % CONTENT_MAX
        if int.from_bytes(data[at:at + 8], 'little') != n + 1 or int.from_bytes(data[at + 8:at + 12], 'little') != length:
            break
        if at + HEAD + length > len(data):
            break
        starts.append(at)
        n, at = n + 1, at + HEAD + length
    for i in {*range(max(0, n - 10), n), *range(0, n, max(1, n // 20))}:
        if i < acknowledged and data[starts[i] + HEAD:starts[i] + HEAD + 1 + mix(i + 1) % CONTENT_MAX] != content(i + 1):
            raise m.Failed('%s: record %d of %d is not what it was, and %d were acknowledged' % (what, i + 1, n, acknowledged))
    if n < acknowledged:
        raise m.Failed('%s: it has records up to %d, and %d were acknowledged' % (what, n, acknowledged))
    return n
