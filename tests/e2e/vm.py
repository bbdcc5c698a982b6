# SPDX-License-Identifier: MIT
"""vm.py - one ftqemu with its QEMU, as a host that can be killed: what the run_qemu_* tests share."""
import json
import os
import re
import shutil
import signal
import subprocess
import time
import traceback

import machine as m

SETTINGS = dict(mem=16, ws=8, rate=500, period=50, sweep=500)


def qemu_args(memory_mib=128, **settings):
    return ['qemu-system-x86_64', *m.guest_args(memory_mib << 10, **dict(SETTINGS, **settings))]


class Vm:
    """`role` with `options`, behind it `qemu` (None: attach).  Its console goes to a file."""
    count, all = 0, []

    def __init__(self, procs, build, role, options=(), qemu=None, name=None, console=True):
        Vm.count += 1
        self.procs, self.build = procs, build
        self.name = name or '%s%d-%d' % (role, Vm.count, os.getpid())
        self.console_path = os.path.join(procs.dir, self.name + '.console')
        self.ctl_path = os.path.join(procs.dir, '%s%d.ctl' % (role, Vm.count))
        self.log = '%s%d' % (role, Vm.count)
        # the machine is shared with other tests: half a second without a word is nothing here
        args = [os.path.join(build, 'tools/ftqemu/ftqemu'), role, '-v', '--name', self.name, '--control', self.ctl_path,
                '--heartbeat-misses', '40', *options]
        if console:
            args += ['--console', 'file:' + self.console_path]
        self.process = procs.start(self.log, args + (['--', *qemu, '-serial', 'stdio'] if qemu else []))
        self._console = None
        Vm.all.append(self)

    def said(self):
        with open(os.path.join(self.procs.dir, self.log + '.log'), encoding='utf-8', errors='replace') as f:
            return f.read()

    def until_said(self, words, wait_s=m.WAIT_S):
        end = time.monotonic() + wait_s
        while words not in self.said():
            if time.monotonic() > end or self.process.poll() is not None:
                raise m.Failed('%s did not say "%s" but:\n%s' % (self.log, words, self.said()[-2000:]))
            time.sleep(0.02)

    def ctl(self, *command):
        r = subprocess.run([os.path.join(self.build, 'tools/ftctl/ftctl'), '-s', self.ctl_path, '--json', *command], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, check=False)
        return json.loads(r.stdout) if r.returncode == 0 and r.stdout else None

    def ask(self, **request):
        """A command that ftctl does not have."""
        import socket
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(30)
            s.connect(self.ctl_path)
            f = s.makefile('rw')
            f.write(json.dumps(request) + '\n')
            f.flush()
            while True:
                r = json.loads(f.readline())
                if 'ok' in r or 'error' in r or 'data' in r:
                    return r

    def until_state(self, *states, wait_s=m.WAIT_S):
        end = time.monotonic() + wait_s
        while True:
            status = self.ctl('status')
            if status and status['state'] in states:
                return status
            if time.monotonic() > end or self.process.poll() is not None:
                raise m.Failed('%s is %s, not %s; %s' % (self.log, status, states, self.said()[-2000:]))
            time.sleep(0.05)

    def address(self):
        self.until_said('listening at ')
        return re.search(r'listening at (\S+)', self.said()).group(1)

    def qemu_pid(self):
        self.until_said('QEMU is process ')
        return int(re.search(r'QEMU is process (\d+)', self.said()).group(1))

    def run_dir(self):
        return re.search(r'its sockets are in (\S+)', self.said()).group(1)

    @property
    def console(self):
        if not self._console:
            end = time.monotonic() + m.WAIT_S
            while not os.path.exists(self.console_path):
                if time.monotonic() > end:
                    raise m.Failed('no console: ' + self.said()[-2000:])
                time.sleep(0.02)
            self._console = m.Console(open(self.console_path, encoding='utf-8', errors='replace'))
        return self._console

    def until_counts(self, n=3):
        """n more lines of the guest; the last one's number."""
        for _ in range(n):
            line = self.console.until('counter', lambda text: counter(text) >= 0)
        return counter(line)

    def die(self):
        """The host fails."""
        for pid in (self.process.pid, self.qemu_pid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def die_alone(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def promote(self):
        end = time.monotonic() + m.WAIT_S
        while not self.ctl('failover'):
            if time.monotonic() > end:
                raise m.Failed('no failover: ' + self.said()[-2000:])
            time.sleep(0.05)

    def clean_up(self):
        """What was killed leaves its QEMU and its run directory."""
        self.procs.kill(self.process)
        found = re.search(r'QEMU is process (\d+), its sockets are in (\S+)', self.said())
        if found and found.group(2).startswith('/run/ft/'):
            if alive(int(found.group(1))):
                os.kill(int(found.group(1)), signal.SIGKILL)
            shutil.rmtree(found.group(2), ignore_errors=True)

    def end(self, sig=signal.SIGTERM):
        self.process.send_signal(sig)
        return self.process.wait(m.WAIT_S)


def alive(pid):
    try:
        with open('/proc/%d/stat' % pid) as f:
            return f.read().rsplit(')', 1)[1].split()[0] != 'Z'
    except FileNotFoundError:
        return False


def until(what, rule, wait_s=m.WAIT_S):
    end = time.monotonic() + wait_s
    while not rule():
        if time.monotonic() > end:
            raise m.Failed('not within the time: ' + what)
        time.sleep(0.02)


def counter(line):
    """The number of a complete counter line; -1 if it is none."""
    match = re.match(r'ft-guest C (\d+) steps .* t \d+\.\d\d\d\s*$', line)
    return int(match.group(1)) if match else -1


MAX_UNSEEN = 3  # lines of an epoch that was safe, while its primary died before letting them out


def counter_lines(path):
    with open(path, encoding='utf-8', errors='replace') as f:
        return [line.strip() for line in f if counter(line) >= 0]


def check_story(*consoles, max_unseen=MAX_UNSEEN):
    """The lines of consecutive hosts are one story: no number twice, none left out but those that nobody can send again (see
    tools/guest/verdict), at most `max_unseen` of them in a row, no page wrong."""
    seen = 0
    for path in consoles:
        lines = counter_lines(path)
        if not lines:
            raise m.Failed('%s: no lines' % path)
        numbers = [counter(line) for line in lines]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise m.Failed('%s: a line is missing or repeated: %s' % (path, numbers))
        if seen and numbers[0] > seen + 1 + max_unseen:
            raise m.Failed('%s: begins with %d, but clients saw up to %d: output was lost' % (path, numbers[0], seen))
        if seen and numbers[0] <= seen:
            raise m.Failed('%s: begins with %d, but clients saw up to %d: output of an epoch that was lost' % (path, numbers[0], seen))
        for line in lines:
            if m.field(line, 'errs') or m.field(line, 'klog') or m.field(line, 'back'):
                raise m.Failed('%s: %s' % (path, line))
        seen = numbers[-1]
    return seen


def main(test, guest=True):
    """Runs test(procs, build); exit status 0 or 1.  A failure keeps the logs.  guest: it boots the guest of tools/guest."""
    import sys
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if guest:
        m.build_guest()
    status = 0
    with m.Processes(keep='FT_KEEP' in os.environ) as procs:
        try:
            test(procs, os.path.abspath(sys.argv[1]))
        except Exception as why:  # also a mistake of the test itself: a QEMU that stays would run for ever
            if not isinstance(why, (m.Failed, OSError)):
                traceback.print_exc()
            print('FAIL', why)
            print('logs:', procs.dir)
            procs.keep, status = True, 1
        finally:
            for v in Vm.all:
                v.clean_up()
    print('PASS' if status == 0 else '')
    sys.exit(status)
