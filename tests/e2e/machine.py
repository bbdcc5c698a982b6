# SPDX-License-Identifier: MIT
"""machine.py - what the end-to-end tests share: the guest of tools/guest, QEMU's monitor, the console, a pair of ftqemu."""
import glob
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import tempfile
import threading
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GUEST = os.path.join(SOURCE, 'build', 'guest')
WAIT_S = 120  # a machine that is busy with other tests is slow


class Failed(Exception):
    pass


def build_guest(services=False):
    """With services: also the initrd that has redis."""
    subprocess.run([os.path.join(SOURCE, 'tools', 'guest', 'build'), GUEST] + ['--services'] * services, check=True)


def guest_args(memory_kib, **settings):
    """QEMU's arguments for the guest; settings are guest.c's (mem, ws, rate, period, sweep) and init's (ip, services, disk)."""
    initrd = 'services.gz' if 'services' in settings else 'initrd.gz'
    append = 'console=ttyS0 quiet panic=-1' + ''.join(' ft.%s=%s' % kv for kv in settings.items())
    return ['-accel', 'tcg', '-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot', '-m', '%dK' % memory_kib,
            '-kernel', GUEST + '/vmlinuz', '-initrd', os.path.join(GUEST, initrd), '-append', append]


def field(line, name):
    """A number of a "ft-guest C" line; -1 if it is none."""
    m = re.match(r'ft-guest C .*\b%s (\d+)' % name, line)
    return int(m.group(1)) if m else -1


class Console:
    """The lines of a guest: of a stream, or of a file that grows."""

    def __init__(self, stream):
        self.lines, self.cond = [], threading.Condition()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream):
        part = ''
        while True:
            try:
                data = stream.readline()
            except (OSError, ValueError):
                return
            if not data:
                if not isinstance(getattr(stream, 'name', None), str):
                    return  # a pipe or socket has ended; a file may grow
                time.sleep(0.005)
                continue
            part += data
            if part.endswith('\n'):
                with self.cond:
                    self.lines.append((time.monotonic(), part.strip()))
                    self.cond.notify_all()
                part = ''

    def until(self, what, rule, wait_s=WAIT_S, past=False):
        """First line (from now on, or of all) that `rule` takes."""
        end, n = time.monotonic() + wait_s, 0 if past else len(self.lines)
        with self.cond:
            while True:
                for _, line in self.lines[n:]:
                    if rule(line):
                        return line
                n = len(self.lines)
                if time.monotonic() > end or not self.cond.wait(max(0, end - time.monotonic())):
                    raise Failed('no line: %s; last were %s' % (what, [text for _, text in self.lines[-5:]]))

    def last(self):
        """(time, line) of the last complete counter line."""
        with self.cond:
            return next(x for x in reversed(self.lines) if field(x[1], 'steps') >= 0)


class Qmp:
    """QEMU's monitor.  events: (name, data, time by QEMU's clock)."""

    def __init__(self, path, wait_s=20):
        end = time.monotonic() + wait_s
        while True:
            self.sock = socket.socket(socket.AF_UNIX)
            try:
                self.sock.connect(path)
                break
            except OSError:
                self.sock.close()
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
        self.sock.settimeout(30)
        self.file, self.events = self.sock.makefile('rw'), []
        self._message()
        self('qmp_capabilities')

    def _message(self):
        line = self.file.readline()
        if not line:
            raise Failed('QEMU closed its monitor')
        return json.loads(line)

    def _event(self, r):
        self.events.append((r['event'], r.get('data'), r['timestamp']['seconds'] + r['timestamp']['microseconds'] / 1e6))

    def __call__(self, command, **arguments):
        arguments = {k.replace('_', '-'): v for k, v in arguments.items()}
        self.file.write(json.dumps({'execute': command, 'arguments': arguments}) + '\n')
        self.file.flush()
        while True:
            r = self._message()
            if 'event' in r:
                self._event(r)
            elif 'error' in r:
                raise Failed('%s: %s' % (command, r['error']['desc']))
            else:
                return r['return']

    def wait_event(self, name, rule, wait_s=WAIT_S):
        end = time.monotonic() + wait_s
        while True:
            for e in self.events:
                if e[0] == name and rule(e[1]):
                    return e
            if time.monotonic() > end:
                raise Failed('no event %s' % name)
            r = self._message()
            if 'event' in r:
                self._event(r)

    def pauses_ms(self):
        """From each STOP to the next RESUME."""
        out, began = [], None
        for name, _, at in self.events:
            if name == 'STOP':
                began = at
            elif name == 'RESUME' and began is not None:
                out.append((at - began) * 1e3)
                began = None
        return out


class Processes:
    """What a test started; all of it ends with the `with` block."""

    def __init__(self, keep=False):
        self.dir, self.keep, self.list = tempfile.mkdtemp(prefix='ft-e2e-'), keep, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.list:
            self.kill(p)
        if not self.keep:
            subprocess.run(['rm', '-rf', self.dir], check=True)

    def start(self, name, args, **kw):
        """In a process group of its own, so that killing it kills the host: ftqemu and its QEMU."""
        kw.setdefault('stdout', subprocess.DEVNULL)
        kw.setdefault('stdin', subprocess.DEVNULL)
        with open(os.path.join(self.dir, name + '.log'), 'w', encoding='utf-8') as log:
            p = subprocess.Popen(args, stderr=log, start_new_session=True, **kw)
        self.list.append(p)
        return p

    @staticmethod
    def kill(p):
        """The host dies: the process and its children (ftqemu's QEMU is in a session of its own)."""
        children = [int(c) for f in glob.glob('/proc/%d/task/*/children' % p.pid) for c in open(f).read().split()]
        for kill, pid in [(os.killpg, p.pid)] + [(os.kill, c) for c in children]:
            try:
                kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        p.wait()

    def log(self, name):
        with open(os.path.join(self.dir, name + '.log'), encoding='utf-8', errors='replace') as f:
            return f.read()[-2000:]


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


class FtPair:
    """ftqemu primary and secondary over TCP on this machine.  The secondary comes when the guest is up, so that the statistics
    are those of a guest that runs, and not of one that boots.  console: what clients of the primary see."""

    def __init__(self, procs, build, qemu_args, primary_options=(), secondary_options=()):
        self.procs, self.build = procs, build
        address = '127.0.0.1:%d' % free_port()
        self.primary = self._start('primary', ['--secondary', address, '--reconnect', '100', *primary_options], qemu_args)
        self._until('primary', lambda s: True)
        self.console = Console(open(self.path('primary', 'console'), encoding='utf-8', errors='replace'))  # read to the end of the test
        self.console.until('READY', lambda line: 'READY' in line, past=True)
        self.secondary = self._start('secondary', ['--listen', address, *secondary_options], qemu_args)

    def path(self, side, what):
        return os.path.join(self.procs.dir, side + '.' + what)

    def _start(self, side, options, qemu_args):
        return self.procs.start(side, [
            os.path.join(self.build, 'tools', 'ftqemu', 'ftqemu'), side, '--name', 'e2e-%d-%s' % (os.getpid(), side),
            '--heartbeat-misses', '40', '--control', self.path(side, 'ctl'), *options, '--',
            'qemu-system-x86_64', *qemu_args, '-serial', 'file:' + self.path(side, 'console')])

    def ctl(self, side, *command):
        """Reply of ftctl, or None if it says no."""
        r = subprocess.run([os.path.join(self.build, 'tools', 'ftctl', 'ftctl'), '-s', self.path(side, 'ctl'), '--json', *command],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        return json.loads(r.stdout) if r.returncode == 0 else None

    def _until(self, side, rule):
        end = time.monotonic() + WAIT_S
        while True:
            status = self.ctl(side, 'status')
            if status and rule(status):
                return status
            if time.monotonic() > end or getattr(self, side).poll() is not None:
                raise Failed('%s: %s; %s' % (side, status, self.procs.log(side)))
            time.sleep(0.05)

    def end(self):
        """Orderly: both clean up behind them."""
        for p in (self.secondary, self.primary):
            p.terminate()
            try:
                p.wait(10)
            except subprocess.TimeoutExpired:
                self.procs.kill(p)

    def wait_protected(self):
        return self._until('primary', lambda s: s['state'] == 'protected')

    def stats(self):
        return self.ctl('primary', 'stats')


def percentile(values, p):
    v = sorted(values)
    return v[min(len(v) - 1, int(len(v) * p / 100))] if v else float('nan')


def median_spread(values):
    return {'median': statistics.median(values), 'min': min(values), 'max': max(values)}
