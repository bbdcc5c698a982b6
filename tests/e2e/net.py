# SPDX-License-Identifier: MIT
"""net.py - a network that the hosts of a test share with its clients, and clients of tools/guest/net.c.

	network namespace of the test
	  clients, 10.77.0.1 --- bridge br0 --+-- tap of one ftqemu ---- QEMU: guest, 10.77.0.2
	                                      +-- tap of the other ----- QEMU: standby, deaf and mute

A client is a thread that keeps one connection; what it was told must stay true.  It starts when it is made."""
import os
import random
import socket
import subprocess
import sys
import threading
import time

import machine as m
import vm

HOST, GUEST, PORT = '10.77.0.1', '10.77.0.2', 7777


def own_namespace(services=False):
    """Runs the script again in a network namespace of its own, if it is not there yet."""
    if os.environ.get('FT_NET_NAMESPACE') != 'own':
        m.build_guest(services)  # may need the network
        os.environ['FT_NET_NAMESPACE'] = 'own'
        os.execvp('unshare', ['unshare', '-n', sys.executable, *sys.argv])


def ip(*words):
    subprocess.run(['ip', *words], check=True)


class Network:
    """The bridge, and the guests that are on it."""

    def __init__(self, procs):
        self.taps = 0
        ip('link', 'set', 'lo', 'up')
        # an address of its own: else it has that of one of its ports, and another one when that host is gone
        ip('link', 'add', 'br0', 'address', '02:00:00:00:77:01', 'type', 'bridge', 'forward_delay', '0')
        ip('addr', 'add', HOST + '/24', 'dev', 'br0')
        ip('link', 'set', 'br0', 'up')
        self.script = os.path.join(procs.dir, 'ifup')
        with open(self.script, 'w', encoding='utf-8') as f:
            f.write('#!/bin/sh\nexec ip link set "$1" master br0 up\n')
        os.chmod(self.script, 0o755)

    def guest(self, **settings):
        """QEMU's command line, with a tap (ft1, ft2, ...) that no other has; it is netdev net0."""
        self.taps += 1
        nic = 'tap,id=net0,model=virtio,ifname=ft%d,script=%s,downscript=no' % (self.taps, self.script)
        return [*vm.qemu_args(ip=GUEST + '/24', **settings), '-nic', nic]


def pattern(at, length):
    """What `pour` sends: octet i is i * 31 + (i >> 8) * 7, which repeats after 64 KiB."""
    at %= 65536
    n = (at + length) // 65536 + 1
    return (PATTERN * n)[at:at + length]


PATTERN = bytes((i * 31 + (i >> 8) * 7) & 255 for i in range(65536))


def connect(port):
    """The guest may still boot."""
    end = time.monotonic() + m.WAIT_S
    while True:
        try:
            return socket.create_connection((GUEST, port), timeout=m.WAIT_S)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


class Client(threading.Thread):
    """talk() runs until .over or its own end; .done counts, .why says what went wrong."""
    port = PORT
    STEP = 10  # that many more, and it has got on

    def __init__(self):
        super().__init__(daemon=True)
        self.sock, self.why, self.done, self.over, self.longest = None, None, 0, False, 0.0
        self.start()

    def run(self):
        try:
            self.sock = connect(self.port)
            self.talk()
        except (OSError, m.Failed, ValueError) as why:
            self.why = '%s after %d: %r' % (type(self).__name__, self.done, why)

    def talk(self):
        raise NotImplementedError

    def check(self):
        if self.why:
            raise m.Failed(self.why)

    def until_done(self, n):
        vm.until('%s comes to %d, not only %d' % (type(self).__name__, n, self.done), lambda: self.done >= n or self.why)
        self.check()

    def finish(self):
        """To the end of what it is at."""
        self.over = True
        self.join(m.WAIT_S)
        self.check()
        if self.is_alive():
            raise m.Failed('%s does not end: %d done' % (type(self).__name__, self.done))


class Counter(Client):
    """"add N", again and again; each answer is checked against all that were asked before: no addition that was answered is lost, none is
    made twice."""

    def talk(self):
        f, total = self.sock.makefile('rw'), 0
        while not self.over:
            n = random.randint(1, 1000)
            began = time.monotonic()
            f.write('add %d\n' % n)
            f.flush()
            total += n
            expected, got = 'total %d %d' % (total, self.done + 1), f.readline().strip()
            if got != expected:
                raise m.Failed('"%s", expected "%s"' % (got, expected))
            self.longest = max(self.longest, time.monotonic() - began)
            self.done += 1


class Download(Client):
    """One long answer of `size` octets, each of them checked."""

    def __init__(self, size):
        self.size = size
        super().__init__()

    def talk(self):
        self.sock.sendall(b'pour %d\n' % self.size)
        while self.done < self.size:
            data = self.sock.recv(1 << 18)
            if not data:
                raise m.Failed('the connection ended')
            if data != pattern(self.done, len(data)):
                raise m.Failed('wrong octets')
            self.done += len(data)


class Ticks:
    """Asks the guest's ticker for UDP datagrams, and notes each that came out: "tick N RANDOM NS".  What has been seen cannot be taken back: a
    guest that went on from before tick N would send N once more, with another RANDOM and NS, or numbers below one that was seen.  A datagram
    that came twice is none of that, and one that was lost neither."""

    def __init__(self, hz=100):
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self.sock.bind((HOST, 0))
        self.seen, self.last, self.why = {}, 0, None
        with connect(PORT) as s:
            s.sendall(b'tick %d %d\nget\n' % (self.sock.getsockname()[1], hz))
            if not s.recv(64).startswith(b'total '):
                raise m.Failed('the ticker was not understood')
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self):
        while not self.why:
            self.why = self.note(self.sock.recv(128).decode())

    def note(self, text):
        """What is wrong with it, or None."""
        n = int(text.split()[1])
        first = self.seen.setdefault(n, text)
        if first != text:
            return 'tick %d was seen twice, and differs: the guest was rolled back to before it: %s, then %s' % (n, first.strip(), text.strip())
        if n < self.last and first is text:
            return 'tick %d came after %d: the guest was rolled back' % (n, self.last)
        self.last = max(self.last, n)
        return None

    def check(self):
        if self.why:
            raise m.Failed(self.why)

    def until_more(self, n):
        goal = self.last + n
        vm.until('tick %d' % goal, lambda: self.last >= goal or self.why)
        self.check()


class Downloads(Client):
    """Download after download over one connection, so that one is always under way; .done counts octets."""
    STEP = 1 << 20

    def talk(self):
        size = 4 << 20
        while not self.over:
            self.sock.sendall(b'pour %d\n' % size)
            at = 0
            while at < size:
                data = self.sock.recv(1 << 18)
                if not data or data != pattern(at, len(data)):
                    raise m.Failed('the connection ended' if not data else 'wrong octets')
                at += len(data)
                self.done += len(data)


class Http(Client):
    """GET after GET of a file whose content follows from its position, each on a connection of its own, as busybox httpd has it; .done counts
    octets, also of a download under way."""
    port, STEP = 80, 1 << 20

    def talk(self):
        while not self.over:
            self.sock.sendall(b'GET /pattern HTTP/1.0\r\n\r\n')
            with self.sock.makefile('rb') as f:
                status, size = f.readline(), None
                for line in iter(f.readline, b'\r\n'):
                    if not line:
                        raise m.Failed('the connection ended in the headers')
                    if line.lower().startswith(b'content-length:'):
                        size = int(line.split(b':')[1])
                if b' 200 ' not in status or not size:
                    raise m.Failed('%s, length %s' % (status, size))
                at = 0
                while data := f.read1(1 << 18):
                    if data != pattern(at, len(data)):
                        raise m.Failed('wrong octets')
                    at += len(data)
                    self.done += len(data)
                if at != size:
                    raise m.Failed('the connection ended at %d of %d' % (at, size))
            self.sock.close()
            self.sock = connect(self.port)


class Redis(Client):
    """INCR, SET of many keys, GET of one that was set before; each answer is compared with what was acknowledged on this one connection.  At the
    end all keys are read."""
    port = 6379
    KEYS = 500

    def call(self, *words):
        words = [str(w).encode() for w in words]
        self.sock.sendall(b'*%d\r\n' % len(words) + b''.join(b'$%d\r\n%s\r\n' % (len(w), w) for w in words))
        head = self.file.readline().rstrip()
        if head[:1] == b'$' and head != b'$-1':
            return self.file.read(int(head[1:]) + 2)[:-2].decode()
        if head[:1] in (b'+', b':'):
            return head[1:].decode()
        raise m.Failed('%s: %s' % (b' '.join(words), head))

    def expect(self, expected, *words):
        got = self.call(*words)
        if got != expected:
            raise m.Failed('%s: "%s", expected "%s"' % (' '.join(map(str, words)), got, expected))

    def talk(self):
        self.file, known = self.sock.makefile('rb'), {}
        while not self.over:
            self.expect(str(self.done + 1), 'INCR', 'counter')
            key, value = 'key%d' % random.randrange(self.KEYS), '%d ' % self.done * random.randint(1, 100)
            self.expect('OK', 'SET', key, value)
            known[key] = value
            key = random.choice(list(known))
            self.expect(known[key], 'GET', key)
            self.done += 1
        self.expect(str(self.done), 'GET', 'counter')
        for key, value in known.items():
            self.expect(value, 'GET', key)


class Disk(Client):
    """Records to the disk writer (tools/guest/disk.c), each of which is on the disk when it is acknowledged.  At the end all are read back, and
    whenever somebody wants an audit."""
    port = 7779

    def __init__(self):
        self.audits, self.wanted = 0, 0
        super().__init__()

    def audit(self):
        """All that was acknowledged is read back, from the disk."""
        self.wanted += 1
        vm.until('all records are read back', lambda: self.audits == self.wanted or self.why)
        self.check()

    def call(self, line):
        self.sock.sendall(line.encode() + b'\n')
        return self.file.readline().strip()

    def expect(self, expected, line):
        got = self.call(line)
        if got != expected:
            raise m.Failed('%s: "%s", expected "%s"' % (line, got, expected))

    def talk(self):
        self.file = self.sock.makefile('r')
        while not self.over:
            self.expect('done %d' % (self.done + 1), 'put %d' % (self.done + 1))
            self.done += 1
            if self.audits < self.wanted:
                self.read_back()
        self.read_back()

    def read_back(self):
        self.expect('highest %d records %d whole' % (self.done, self.done), 'check')
        self.audits += 1


SERVICES = {'http': Http, 'redis': Redis}
