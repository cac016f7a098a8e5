# mypy: ignore-errors
"""Twins of the byte and text buffers of ``io`` (see ``values/twins.py``): traced, not run."""

import io

from torchsmith_tracer._src.values.twins import twin


class _Buffer:
    """What both have in common: ``_data`` and the place ``_at`` in it, until it is closed."""

    def _check(self):
        if self._closed:
            raise ValueError(self.CLOSED)

    def getvalue(self):
        self._check()
        return self._data

    def tell(self):
        self._check()
        return self._at

    def _put(self, data):
        at = self._at
        gap = self.GAP * (at - len(self._data))
        self._data = self._data[:at] + gap + data + self._data[at + len(data) :]
        self._at = at + len(data)

    def read(self, size=-1, /):
        self._check()
        start = self._at
        stop = len(self._data) if size is None or size < 0 else start + size
        found = self._data[start:stop]
        self._at = start + len(found)
        return found

    def _line_end(self):
        return self._data.find(self.LINE, self._at) + 1

    def readline(self, size=-1, /):
        self._check()
        left = max((self._line_end() or len(self._data)) - self._at, 0)
        return self.read(left if size is None or size < 0 else min(size, left))

    def readlines(self, hint=-1, /):
        lines = []
        total = 0
        for line in self:
            lines.append(line)
            total += len(line)
            if hint is not None and 0 < hint <= total:
                break
        return lines

    def writelines(self, lines, /):
        self._check()
        for line in lines:
            self.write(line)

    def truncate(self, size=None, /):
        self._check()
        size = self._at if size is None else size
        if size < 0:
            raise ValueError(f"{self.NEGATIVE_SIZE} {size}")
        self._data = self._data[:size]
        return size

    def readable(self):
        self._check()
        return True

    writable = seekable = readable

    def isatty(self):
        self._check()
        return False

    def flush(self):
        self._check()

    def fileno(self):
        raise io.UnsupportedOperation("fileno")

    @property
    def closed(self):
        return self._closed

    def close(self):
        self._closed = True

    def __enter__(self):
        self._check()
        return self

    def __exit__(self, *exc):
        self.close()

    def __iter__(self):
        self._check()
        return self

    def __next__(self):
        line = self.readline()
        if not line:
            raise StopIteration
        return line


@twin("_io", "BytesIO")
class BytesIO(_Buffer):
    state = ("_data", "_at", "_closed")
    CLOSED, NEGATIVE_SIZE = "I/O operation on closed file.", "negative size value"
    GAP, LINE = b"\0", b"\n"

    def __init__(self, initial_bytes=b""):
        self._data = b"" if initial_bytes is None else bytes(initial_bytes)
        self._at = 0
        self._closed = False

    def write(self, data, /):
        self._check()
        data = bytes(data)
        self._put(data)
        return len(data)

    def readinto(self, buffer, /):
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def getbuffer(self):
        return self._data

    def seek(self, pos, whence=0, /):
        self._check()
        self._at = max(0, pos + (0, self._at, len(self._data))[whence])
        return self._at

    @staticmethod
    def rebuild(cls, data, at, closed):
        made = io.BytesIO(data)
        made.seek(at)
        if closed:
            made.close()
        return made


@twin("_io", "StringIO")
class StringIO(_Buffer):
    state = ("_data", "_at", "_closed", "_newline")
    CLOSED, NEGATIVE_SIZE = "I/O operation on closed file", "Negative size value"
    GAP, LINE = "\0", "\n"
    line_buffering = False
    encoding = errors = None

    def __init__(self, initial_value="", newline="\n"):
        for name, given in (("newline", newline), ("initial_value", initial_value)):
            if given is not None and not isinstance(given, str):
                raise TypeError(f"{name} must be str or None, not {type(given).__name__}")
        if newline not in (None, "", "\n", "\r", "\r\n"):
            raise ValueError(f"illegal newline value: {newline!r}")
        self._data = ""
        self._at = 0
        self._closed = False
        self._newline = newline
        self.write(initial_value or "")
        self._at = 0

    def write(self, text, /):
        if not isinstance(text, str):
            raise TypeError(f"string argument expected, got {type(text).__name__!r}")
        self._check()
        written = str(text)
        if self._newline is None:
            written = written.replace("\r\n", "\n").replace("\r", "\n")
        elif self._newline:
            written = written.replace("\n", self._newline)
        self._put(written)
        return len(text)

    def _line_end(self):
        ends = ("\r\n", "\r", "\n") if self._newline == "" else (self._newline or "\n",)
        places = [(self._data.find(end, self._at), -len(end)) for end in ends]
        found = [(place, size) for place, size in places if place >= 0]
        if not found:
            return 0
        place, size = min(found)
        return place - size

    def seek(self, pos, whence=0, /):
        self._check()
        if whence not in (0, 1, 2):
            raise ValueError(f"Invalid whence ({whence}, should be 0, 1 or 2)")
        if pos < 0 and whence == 0:
            raise ValueError(f"Negative seek position {pos}")
        if whence and pos:
            raise OSError("Can't do nonzero cur-relative seeks")
        self._at = (pos, self._at, len(self._data))[whence]
        return self._at

    @staticmethod
    def rebuild(cls, data, at, closed, newline):
        made = io.StringIO()
        made.__setstate__((data, newline, at, None))
        if closed:
            made.close()
        return made
