"""Runs a program under a seccomp profile as the kubelet's runtimes would: confined.py PROFILE PROGRAM [ARGUMENT…]

The profile is in the format of the OCI runtime specification. Needs libseccomp.so.2, which every Debian has.
"""

import ctypes
import json
import os
import sys

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
COMPARE = {"NE": 1, "LT": 2, "LE": 3, "EQ": 4, "GE": 5, "GT": 6, "MASKED_EQ": 7}


class Argument(ctypes.Structure):
    _fields_ = [("index", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def action(rule, errno):
    return ALLOW if rule == "SCMP_ACT_ALLOW" else ERRNO | errno


def main(profile, *command):
    with open(profile) as file:
        profile = json.load(file)
    lib = ctypes.CDLL("libseccomp.so.2")
    lib.seccomp_init.restype = ctypes.c_void_p
    filter = ctypes.c_void_p(lib.seccomp_init(action(profile["defaultAction"], profile["defaultErrnoRet"])))
    default = action(profile["defaultAction"], profile["defaultErrnoRet"])
    for rule in profile["syscalls"]:
        verdict = action(rule["action"], rule.get("errnoRet", 1))
        if verdict == default:
            continue
        arguments = [
            # In a mask the first number is the mask, the second what must be left.
            Argument(arg["index"], COMPARE[arg["op"].removeprefix("SCMP_CMP_")], arg["value"], arg.get("valueTwo", 0))
            for arg in rule.get("args", [])
        ]
        array = (Argument * max(len(arguments), 1))(*arguments)
        for name in rule["names"]:
            number = lib.seccomp_syscall_resolve_name(name.encode())
            # One that this kernel or processor doesn't have.
            if number == -1:
                continue
            failed = lib.seccomp_rule_add_array(filter, ctypes.c_uint32(verdict), number, len(arguments), array)
            # Not on this processor.
            if failed and failed != -33:
                sys.exit(f"{name}: {os.strerror(-failed)}")
    failed = lib.seccomp_load(filter)
    if failed:
        sys.exit(f"the profile was not taken: {os.strerror(-failed)}")
    os.execvp(command[0], command)


main(*sys.argv[1:])
