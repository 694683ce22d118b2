"""Damage to bytes: in checkpoints, in weights, in token files, in a process's memory."""

import collections
import json
import os
import struct

# Where the .idx file of an indexed dataset has the code of its type of token ids, and the
# formats of the types by their code.
TYPE_AT = 17
FORMATS = {4: "<i", 8: "<H"}


def flip_in_file(path, random):
    """Flips one bit; returns a function that flips it back."""
    at = random.randrange(os.path.getsize(path))
    mask = 1 << random.randrange(8)

    def flip():
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ mask]))

    flip()
    return flip


def fill(path, left):
    """Writes into this file until so many bytes are left on its disk."""
    space = os.statvfs(os.path.dirname(path))
    with open(path, "ab", buffering=0) as file:
        try:
            file.write(bytes(max(0, space.f_bavail * space.f_frsize - left)))
        except OSError:
            pass  # Somebody else was faster.


def header_of(path):
    """Of a safetensors file: ({name: its entry}, where the data begin)."""
    with open(path, "rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    return entries, 8 + length


def tensors_in(path):
    """{name: bytes} of a safetensors file."""
    entries, begin = header_of(path)
    with open(path, "rb") as file:
        content = file.read()
    return {name: content[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]]
            for name, entry in entries.items()}


def poison(path, name, element):
    """Writes NaN into one fp32 element of a tensor."""
    entries, begin = header_of(path)
    assert entries[name]["dtype"] == "F32", entries[name]
    with open(path, "r+b") as file:
        file.seek(begin + entries[name]["data_offsets"][0] + 4 * element)
        file.write(struct.pack("<f", float("nan")))


def some_weights(part, random):
    """64 neighbouring bytes of some parameter in a part of a checkpoint."""
    tensors = {name: content for name, content in tensors_in(part).items()
               if not name.split("|")[0].endswith((".exp_avg", ".exp_avg_sq")) and
               len(set(content[:64:4])) > 4}  # Norms are ones, and found too often.
    content = tensors[random.choice(sorted(tensors))]
    at = 4 * random.randrange((len(content) - 64) // 4 + 1)
    return content[at:at + 64]


def constant_weights(parts, random):
    """64 neighbouring bytes of a parameter that are alike in the same part of two checkpoints,
    which are given by the paths of their parts; b"" if there are none."""
    by_step = collections.defaultdict(dict)  # {folder of the step: {rank: path}}
    for path in parts:
        by_step[os.path.dirname(path)][os.path.basename(path).split(".")[0]] = path
    steps = sorted(by_step)
    found = []
    for older, newer in zip(steps, steps[1:]):
        for rank in set(by_step[older]) & set(by_step[newer]):
            before, after = (tensors_in(by_step[step][rank]) for step in (older, newer))
            for name in set(before) & set(after):
                if name.split("|")[0] != "model.embed_tokens.weight":
                    continue
                for at in range(0, len(after[name]) - 63, 64):
                    if before[name][at:at + 64] == after[name][at:at + 64]:
                        found.append(after[name][at:at + 64])
    return random.choice(sorted(found)) if found else b""


def flip_in_memory(pid, wanted, random):
    """Flips one bit of these bytes wherever they lie in the process's own memory; returns in
    how many places. The process may be ended for it while its memory is still searched."""
    byte = random.randrange(len(wanted))
    flipped = bytes([wanted[byte] ^ (1 << random.randrange(8))])
    places = 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in maps.readlines():
            addresses, modes = line.split()[:2]
            if modes != "rw-p":
                continue
            begin, end = (int(address, 16) for address in addresses.split("-"))
            try:
                memory.seek(begin)
                content = memory.read(end - begin)
            except OSError:
                continue  # A region that cannot be read, as the kernel's own.
            at = content.find(wanted)
            while at >= 0:
                memory.seek(begin + at + byte)
                try:
                    places += memory.write(flipped)
                except OSError:
                    return places
                at = content.find(wanted, at + 1)
    return places


class TokenFile:
    """The .bin file of an indexed dataset."""

    def __init__(self, prefix):
        self._path = prefix + ".bin"
        with open(prefix + ".idx", "rb") as file:
            file.seek(TYPE_AT)
            self._format = FORMATS[file.read(1)[0]]
        self.count = os.path.getsize(self._path) // struct.calcsize(self._format)

    def counts(self):
        """How often each token is there."""
        with open(self._path, "rb") as file:
            content = file.read()
        return collections.Counter(
            token for token, in struct.iter_unpack(self._format, content))

    def overwrite(self, places, token):
        with open(self._path, "r+b") as file:
            for place in places:
                file.seek(place * struct.calcsize(self._format))
                file.write(struct.pack(self._format, token))
