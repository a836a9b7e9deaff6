"""
Attacks by sandboxed code: rows of Python code for `test_attacks.py`.

- `REFUSED` prints `escaped` on success. Any error may refuse it.
- `LINGERING` leaves something to run after the call.
- `GREEDY` exceeds a limit of the whole container, by the limit's name.
"""

from __future__ import annotations

_CALL = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(x86, arm, *arguments):
    number = {"x86_64": x86, "aarch64": arm}[platform.machine()]
    arguments = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return libc.syscall(ctypes.c_long(number), *arguments)
def refused(result):
    print("refused" if result < 0 else "escaped", ctypes.get_errno())
"""

_CODE_PAGE = """
import ctypes, mmap, os, platform
def run(code):
    page = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)
    page.write(code)
    ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""

REFUSED = {
    "connects to another machine": "import socket; socket.create_connection(('1.1.1.1', 53), 2); print('escaped')",
    "resolves a name": "import socket; socket.getaddrinfo('example.com', 80); print('escaped')",
    "sends a datagram": "import socket; socket.socket(2, 2).sendto(b'x', ('8.8.8.8', 53)); print('escaped')",
    "sees a network interface": "n = [line for line in open('/proc/net/dev') if ':' in line and 'lo:' not in line]\n"
    "print('escaped' if n else 'none')",
    "opens a socket to the hypervisor": "import socket; socket.socket(40, 1, 0); print('escaped')",
    "opens a netlink socket": "import socket; socket.socket(16, 3, 0); print('escaped')",
    "opens a raw socket": "import socket; socket.socket(2, 3, 1); print('escaped')",
    "reads the host's passwords": "print('escaped' if 'root:x:0:0:root' in open('/etc/passwd').read() else 'own')",
    "reads the host's shadow": "open('/etc/shadow'); print('escaped')",
    "lists homes": "import os; print('escaped' if os.path.exists('/home') or os.path.exists('/root') else 'none')",
    "reads the environment of the first process": "print('escaped' if open('/proc/1/environ').read() else 'no')",
    "reads its own environment": "import os; print('escaped' if 'ANTIPHON_CANARY' in os.environ else 'clean')",
    "leaves through another process's root": "import os\nfor pid in (1, os.getpid()):\n"
    "    try: print('escaped' if 'home' in os.listdir(f'/proc/{pid}/root') else 'same')\n"
    "    except OSError as error: print(error)",
    "writes to the supervisor's memory": "open('/proc/1/mem', 'r+b'); print('escaped')",
    "reads the supervisor's memory": "open('/proc/1/mem', 'rb'); print('escaped')",
    "reads the supervisor's addresses": "open('/proc/1/maps').read(); print('escaped')",
    "reads what the supervisor executes": "open('/proc/1/syscall').read(); print('escaped')",
    "takes the supervisor's pipes": "import os; os.listdir('/proc/1/fd'); print('escaped')",
    "takes the supervisor's pipe by number": _CALL + "refused(call(438, 438, __import__('os').pidfd_open(1), 0, 0))",
    "protects the supervisor from the kernel": "open('/proc/1/oom_score_adj', 'w').write('0'); print('escaped')",
    "sees processes of the host": "import os\npids = [int(p) for p in os.listdir('/proc') if p.isdigit()]\n"
    "print('own' if sorted(pids) == [1, os.getpid()] else 'escaped')",
    "writes to /usr": "open('/usr/escaped', 'w'); print('escaped')",
    "writes to the root": "open('/escaped', 'w'); print('escaped')",
    "writes to /dev": "open('/dev/escaped', 'w'); print('escaped')",
    "replaces the worker": "open('/run/sandbox/sandbox/worker.py', 'w'); print('escaped')",
    "sets a kernel setting": "open('/proc/sys/kernel/core_pattern', 'w').write('|/bin/sh'); print('escaped')",
    "triggers sysrq": "open('/proc/sysrq-trigger', 'w').write('b'); print('escaped')",
    "reads the kernel's memory": "open('/proc/kcore', 'rb').read(1); print('escaped')",
    "opens a disk": "import os, stat\nos.mknod('/tmp/disk', 0o600 | stat.S_IFBLK, os.makedev(8, 0)); print('escaped')",
    "becomes root": "import os; os.setuid(0); print('escaped')",
    "uses a setuid program": "import subprocess as s\nr = s.run(['su', '-c', 'id'], capture_output=True, text=True)\n"
    "print('escaped' if 'uid=0' in r.stdout else 'refused')",
    "changes its root": "import os; os.chroot('/tmp'); print('escaped')",
    "raises its limits": "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (9999, 9999)); print('escaped')",
    "takes more CPUs": "import os; os.sched_setaffinity(0, range(os.cpu_count()))\nprint('escaped')",
    "gains priority": "import os; os.nice(-5); print('escaped')",
    "traces a process": _CALL + "refused(call(101, 117, 16, 1, 0, 0))",
    "mounts": _CALL + "refused(call(165, 40, b'none', b'/tmp', b'tmpfs', 0, None))",
    "unmounts": _CALL + "refused(call(166, 39, b'/mnt/data', 2))",
    "makes a user namespace": _CALL + "refused(call(272, 97, 0x10000000))",
    "clones into a namespace": _CALL + "refused(call(56, 220, 0x10000011, 0, 0, 0, 0))",
    "uses clone3": _CALL + "refused(call(435, 435, ctypes.create_string_buffer(88), 88))",
    "joins a namespace": _CALL + "refused(call(308, 268, 0, 0))",
    "uses io_uring": _CALL + "refused(call(425, 425, 8, ctypes.create_string_buffer(120)))",
    "loads a program into the kernel": _CALL + "refused(call(321, 280, 0, ctypes.create_string_buffer(120), 120))",
    "asks for a key": _CALL + "refused(call(250, 219, 0, -3, 1))",
    "makes memory that is nobody's": _CALL + "refused(call(319, 279, b'x', 0))",
    "makes a System V segment": _CALL + "refused(call(29, 194, 0, 1 << 20, 0o1600))",
    "reads another's memory": _CALL + "refused(call(310, 270, 1, 0, 0, 0, 0, 0))",
    "writes another's memory": _CALL + "refused(call(311, 271, 1, 0, 0, 0, 0, 0))",
    "restarts the machine": _CALL + "refused(call(169, 142, 0xfee1dead, 672274793, 0x1234567, 0))",
    "uses the other ABI": _CALL
    + "refused(libc.syscall(ctypes.c_long(0x40000000 + 39)) if platform.machine() == 'x86_64' else -1)",
    "sets the clock": "import time; time.clock_settime(time.CLOCK_REALTIME, 0); print('escaped')",
    # Ways to continue a stopped process.
    "makes a timer with a signal": _CALL + "refused(call(222, 107, 1, None, ctypes.create_string_buffer(8)))",
    "is notified of messages": _CALL + "refused(call(240, 180, b'/queue', 0o102, 0o600, None))",
    "chooses the signal of a file": "import fcntl, os\nfor signal in (10, 18):\n"
    "    try: fcntl.fcntl(0, 10, signal); print('escaped')\n    except OSError as error: print(error)",
    "chooses the signal of its parent's end": _CALL + "refused(libc.prctl(1, 18, 0, 0, 0))",
    "chooses the signal of its own end": _CALL + "refused(call(56, 220, 18, 0, 0, 0, 0))",
    "continues a process": "import os, signal; os.kill(os.getpid(), signal.SIGCONT); print('escaped')",
    "continues all processes": "import os, signal; os.kill(-1, signal.SIGCONT); print('escaped')",
    "continues a process in the shell": "import os\nprint('refused' if os.system('kill -CONT $$') else 'escaped')",
    "continues a thread": _CALL + "import os\nrefused(call(200, 130, os.getpid(), 18))\n"
    "refused(call(234, 131, os.getpid(), os.getpid(), 18))",
    "queues a signal": _CALL + "import os\ninfo = ctypes.create_string_buffer(128)\n"
    "ctypes.c_int.from_buffer(info, 0).value, ctypes.c_int.from_buffer(info, 8).value = 18, -1\n"
    "refused(call(129, 138, os.getpid(), 18, info))\nrefused(call(297, 240, os.getpid(), os.getpid(), 18, info))",
    "signals by a file descriptor": _CALL
    + "import os\nrefused(call(424, 424, os.pidfd_open(os.getpid()), 18, None, 0))",
    "continues with bits that the kernel ignores": _CALL
    + "import os\nrefused(call(62, 129, os.getpid(), 18 | 1 << 40))",
    "continues a process by 32-bit calls": _CODE_PAGE
    + """
if platform.machine() != "x86_64":
    print("refused")
elif (child := os.fork()) == 0:
    # mov eax, 37 (kill); mov ebx, PID; mov ecx, 18; int 0x80; ret
    run(b"\\xb8\\x25\\0\\0\\0\\xbb" + os.getpid().to_bytes(4, "little") + b"\\xb9\\x12\\0\\0\\0\\xcd\\x80\\xc3")
    os._exit(0)
else:
    print("refused" if os.waitpid(child, 0)[1] else "escaped")
""",
    "keeps others from its core": _CALL + "refused(libc.prctl(62, 1, 0, 0, 0))",
    # Memory outside any process, or reserved for others.
    "shares memory without a file": "import mmap; mmap.mmap(-1, 1 << 20); print('escaped')",
    "shares memory of /dev/zero": "import mmap, os\nfd = os.open('/dev/zero', os.O_RDWR)\n"
    "mmap.mmap(fd, 1 << 20); print('escaped')",
    "takes huge pages": _CALL + "libc.mmap.restype = ctypes.c_long\n"
    "refused(libc.mmap(None, ctypes.c_size_t(1 << 21), 3, 0x40022, -1, ctypes.c_long(0)))",
    "puts pages into a pipe": _CALL + "import os\ndata = ctypes.create_string_buffer(4096)\n"
    "vector = (ctypes.c_void_p * 2)(ctypes.addressof(data), 4096)\nrefused(call(278, 75, os.pipe()[1], vector, 1, 0))",
    "writes attributes of files": "import os\nopen('a', 'w').close()\n"
    "os.setxattr('a', 'user.a', bytes(60000)); print('escaped')",
    # Kernel resources per host user, which all sandboxes share.
    "takes inotify instances": _CALL + "refused(libc.inotify_init1(0))",
    "enlarges a pipe": "import fcntl, os; fcntl.fcntl(os.pipe()[0], 1031, 1 << 20); print('escaped')",
    # A host program that receives core dumps, as root.
    "has core dumps handled by the host": "import resource\n"
    "if resource.getrlimit(resource.RLIMIT_CORE) != (1, 1): print('escaped')\n"
    "for limit in ((0, 0), (0, 1), (1, 1)):\n"
    "    try: resource.setrlimit(resource.RLIMIT_CORE, limit); print('escaped')\n"
    "    except (OSError, ValueError) as error: print(error)",
}

_SPIN = """
import ctypes, os, signal, sys, threading, time
libc = ctypes.CDLL(None)
calling = ctypes.PyDLL(None)  # keeps the interpreter's lock
def spin():
    while True: pass
def forked(run, *arguments):
    if (child := os.fork()) == 0:
        try: run(*arguments)
        finally: os._exit(0)
    return child
def deaf():
    for number in (signal.SIGHUP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
"""
_LARGE = 100 * 1024 * 1024  # a process's memory, to make its exit slow

LINGERING = {
    "the first process, rewritten to spin": _SPIN
    + """
jump = {"x86_64": b"\\xeb\\xfe", "aarch64": b"\\0\\0\\0\\x14"}[os.uname().machine]  # to itself
try:
    counter = int(open("/proc/1/syscall").read().split()[-1], 16)
    with open("/proc/1/mem", "r+b", buffering=0) as memory:
        memory.seek(counter)
        memory.write(jump)
except OSError:
    pass
forked(lambda: forked(time.sleep, 0.05))  # wakes an init that waits for its children
time.sleep(0.2)
""",
    "a process in a session of its own": _SPIN + "forked(lambda: (os.setsid(), spin()))",
    "a thread": _SPIN + "threading.Thread(target=spin, daemon=True).start()",
    "a process that sleeps at first": _SPIN + "forked(lambda: (time.sleep(0.2), spin()))",
    "a job in the background of a shell": _SPIN + "os.system('(sleep 0.2; while :; do :; done) >/dev/null 2>&1 &')",
    "a timer that raises SIGCONT": _SPIN
    + """
class Event(ctypes.Structure):
    _fields_ = [("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("how", ctypes.c_int), ("", ctypes.c_char * 48)]
times, timer = (ctypes.c_long * 4)(0, 50_000_000, 0, 50_000_000), ctypes.c_void_p()
def armed():
    event = Event(None, signal.SIGCONT, 0)
    libc.timer_create(1, ctypes.byref(event), ctypes.byref(timer))
    libc.timer_settime(timer, 0, ctypes.byref(times), None)
    spin()
forked(armed)
""",
    "an alarm": _SPIN
    + """
def armed():
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
    spin()
forked(armed)
""",
    "processes that continue each other": _SPIN
    + """
def continuing():
    while True:
        for pid in (0, -1, *pids):
            try: os.kill(pid, signal.SIGCONT)
            except OSError: pass
pids = []
for _ in range(8): pids.append(forked(continuing))
""",
    "threads of a process that waits for its vfork": _SPIN
    + """
def waiting():
    for _ in range(3): threading.Thread(target=spin, daemon=True).start()
    libc.syscall(*{"x86_64": (56, 0x4100 | 17), "aarch64": (220, 0x4100 | 17)}[os.uname().machine], 0, 0, 0, 0)
    while True: libc.sleep(1000)
forked(waiting)
time.sleep(0.3)
""",
    "groups whose parent is ending": _SPIN
    + f"""
read, write = os.pipe()
def child():
    deaf()
    signal.signal(signal.SIGCONT, lambda *_: spin())
    os.setpgid(0, 0)
    while True: signal.pause()
def parent():
    forked(child), forked(child)
    # Its end takes a while, in which nothing stops it; then its children, which are stopped, get SIGCONT.
    data = bytearray({_LARGE})
    time.sleep(0.1)
    os.write(write, b"x")
    os._exit(0)
forked(lambda: (os.setsid(), forked(parent), time.sleep(600)))
os.read(read, 1)
""",
    "the leader of a terminal that hangs up": _SPIN
    + f"""
import fcntl, pty, termios
master, slave = pty.openpty()
read, write = os.pipe()
def leader():
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    os.close(master)
    deaf()
    os.write(write, b"x")
    spin()
def holder():
    data = bytearray({_LARGE})  # freed before its files are closed
    os.close(slave)
    os.write(write, b"x")
    os._exit(0)
forked(leader)
os.read(read, 1)
forked(holder)
os.close(master); os.close(slave)
os.read(read, 1)
""",
    "a chain of processes": _SPIN
    + """
def chain():
    os.setpgid(0, 0)
    while True:
        if os.fork():
            os._exit(0)
for _ in range(3): forked(chain)
""",
    "a chain of threads": _SPIN
    + """
def chain():
    try: threading.Thread(target=chain).start()
    except RuntimeError: pass
forked(lambda: (chain(), time.sleep(600)))
""",
    "a chain of programs": _SPIN
    + """
open("/tmp/next", "w").write("exec /bin/sh /tmp/next")
forked(os.execv, "/bin/sh", ["sh", "/tmp/next"])
""",
    "a process that stops and is told": _SPIN
    + """
def child():
    while True: os.kill(os.getpid(), signal.SIGSTOP)
def parent():
    pid = forked(child)
    while True:
        os.waitpid(pid, os.WUNTRACED | os.WCONTINUED)
        try: os.kill(pid, signal.SIGCONT)
        except OSError: pass
for _ in range(4): forked(parent)
""",
}

GREEDY = {
    "many processes": (
        "memory",
        f"""
import subprocess, sys, time
take = "data = bytearray({_LARGE}); import time; time.sleep(600)"
for _ in range(8): subprocess.Popen([sys.executable, "-c", take])
time.sleep(600)
""",
    ),
    "files without content": (
        "files",
        """
import os
for folder in ("/mnt/data", "/tmp", "/dev/shm"):
    for number in range(1_000_000): open(f"{folder}/{number}", "w").close()
""",
    ),
    "sockets": (
        "sockets",
        """
import os, socket, time
for _ in range(8):
    if os.fork() == 0:
        kept = [socket.socketpair() for _ in range(100)]
        time.sleep(600)
time.sleep(600)
""",
    ),
    "a chain of processes": (
        "memory",
        f"""
import os, time
while True:
    data = bytearray({_LARGE})
    for _ in range(3):
        if os.fork() == 0:
            data = bytearray({_LARGE})
            time.sleep(5)
            os._exit(0)
    if os.fork():
        time.sleep(1)
        os._exit(0)
""",
    ),
}
