"""Translates the functions of a PTX text to LLVM IR.

Every register is a stack slot of integer bits, as PTX registers are; LLVM makes values of them. Memory is the process's own: an
address of any state space is a host address. Accesses pass `@nb_place`, which knows the memory that the kernel may touch.
"""

from __future__ import annotations

import functools
import re

from ptx_emulator import instructions, meeting_instructions  # noqa: F401 - the latter registers its own
from ptx_emulator.instructions import LLVM
from ptx_emulator.meetings import ONES, Meeting
from ptx_emulator.program import BITS, Function, Program, Statement, declarations, registers

WARP = 32
# Special registers (PTX ISA, chapter 10) that a thread finds as they are
_REGISTERS = (
    *("tid.x", "tid.y", "tid.z", "ctaid.x", "ctaid.y", "ctaid.z", "ntid.x", "ntid.y", "ntid.z"),
    *("nctaid.x", "nctaid.y", "nctaid.z", "dynamic_smem_size"),
)
# What a thread knows, as int64 words: its registers, where the machine and its stack lie, how it goes back to the scheduler (with
# zeros where there is none), what they tell each other, and where accesses are noted (or zero).
CONTEXT = (
    *_REGISTERS,
    *("ranges", "count", "fault", "print", "parameters", "top", "swap", "state", "back"),
    *("meeting", "mask", "first", "second", "third", "answer", "holds"),
    *("log", "room", "clock"),
)

# A place that may be accessed is returned as it is; any other is noted (once) and replaced by a scratch place.
_PRELUDE = """
@nb_scratch = internal global [64 x i8] zeroinitializer, align 64
define internal ptr @nb_place(ptr %ctx, i64 %address, i64 %size, i64 %write, i64 %line, i64 %stack_too, i64 %value) noinline {
  %here = alloca i64
  %low = urem i64 %address, %size
  %aligned = icmp eq i64 %low, 0
  br i1 %aligned, label %stack, label %bad
stack:
  %lowest = ptrtoint ptr %here to i64
  %top_at = getelementptr i64, ptr %ctx, i64 @top@
  %top = load i64, ptr %top_at
  %room = sub i64 %top, %lowest
  %far = sub i64 %address, %lowest
  %near = icmp ult i64 %far, %room
  %asked = icmp ne i64 %stack_too, 0
  %on_stack = and i1 %near, %asked
  br i1 %on_stack, label %good, label %start
start:
  %ranges_at = getelementptr i64, ptr %ctx, i64 @ranges@
  %ranges = load ptr, ptr %ranges_at
  %count_at = getelementptr i64, ptr %ctx, i64 @count@
  %count = load i64, ptr %count_at
  br label %next
next:
  %k = phi i64 [ 0, %start ], [ %k1, %again ]
  %more = icmp ult i64 %k, %count
  br i1 %more, label %look, label %bad
look:
  %row = mul i64 %k, 3
  %begin_at = getelementptr i64, ptr %ranges, i64 %row
  %begin = load i64, ptr %begin_at
  %end_at = getelementptr i64, ptr %begin_at, i64 1
  %end = load i64, ptr %end_at
  %free_at = getelementptr i64, ptr %begin_at, i64 2
  %free = load i64, ptr %free_at
  %last = add i64 %address, %size
  %after = icmp uge i64 %address, %begin
  %before = icmp ule i64 %last, %end
  %needed = and i64 %write, 1
  %may = icmp uge i64 %free, %needed
  %inside = and i1 %after, %before
  %fits = and i1 %inside, %may
  br i1 %fits, label %noted, label %again
again:
  %k1 = add i64 %k, 1
  br label %next
noted:
  call void @nb_noted(ptr %ctx, i64 %address, i64 %size, i64 %write, i64 %line, i64 %value)
  br label %good
good:
  %place = inttoptr i64 %address to ptr
  ret ptr %place
bad:
  %fault_at = getelementptr i64, ptr %ctx, i64 @fault@
  %fault = load ptr, ptr %fault_at
  %old = load i64, ptr %fault
  %first = icmp eq i64 %old, 0
  br i1 %first, label %note, label %done
note:
  store i64 %line, ptr %fault
  %f1 = getelementptr i64, ptr %fault, i64 1
  store i64 %address, ptr %f1
  %f2 = getelementptr i64, ptr %fault, i64 2
  store i64 %size, ptr %f2
  %f3 = getelementptr i64, ptr %fault, i64 3
  %needed_too = and i64 %write, 1
  store i64 %needed_too, ptr %f3
  br label %done
done:
  ret ptr @nb_scratch
}
; What is noted of an access is told in `races`; the first word of the log is how many there are.
define internal void @nb_noted(ptr %ctx, i64 %address, i64 %size, i64 %write, i64 %line, i64 %value) noinline {
  %log_at = getelementptr i64, ptr %ctx, i64 @log@
  %log = load ptr, ptr %log_at
  %off = icmp eq ptr %log, null
  br i1 %off, label %done, label %on
on:
  %count = load i64, ptr %log
  %more = add i64 %count, 1
  store i64 %more, ptr %log
  %room_at = getelementptr i64, ptr %ctx, i64 @room@
  %room = load i64, ptr %room_at
  %fits = icmp ult i64 %count, %room
  br i1 %fits, label %note, label %done
note:
  %row = mul i64 %count, 8
  %begin = add i64 %row, 8
  %entry = getelementptr i64, ptr %log, i64 %begin
  %nx_at = getelementptr i64, ptr %ctx, i64 @ntid.x@
  %nx = load i64, ptr %nx_at
  %ny_at = getelementptr i64, ptr %ctx, i64 @ntid.y@
  %ny = load i64, ptr %ny_at
  %x = load i64, ptr %ctx
  %y_at = getelementptr i64, ptr %ctx, i64 @tid.y@
  %y = load i64, ptr %y_at
  %z_at = getelementptr i64, ptr %ctx, i64 @tid.z@
  %z = load i64, ptr %z_at
  %zy = mul i64 %z, %ny
  %yz = add i64 %zy, %y
  %yx = mul i64 %yz, %nx
  %thread = add i64 %yx, %x
  store i64 %thread, ptr %entry
  %clock_at = getelementptr i64, ptr %ctx, i64 @clock@
  %clock = load i64, ptr %clock_at
  %e1 = getelementptr i64, ptr %entry, i64 1
  store i64 %clock, ptr %e1
  %e2 = getelementptr i64, ptr %entry, i64 2
  store i64 %address, ptr %e2
  %e3 = getelementptr i64, ptr %entry, i64 3
  store i64 %size, ptr %e3
  %e4 = getelementptr i64, ptr %entry, i64 4
  store i64 %write, ptr %e4
  %e5 = getelementptr i64, ptr %entry, i64 5
  store i64 %line, ptr %e5
  %e6 = getelementptr i64, ptr %entry, i64 6
  store i64 %value, ptr %e6
  br label %done
done:
  ret void
}
define internal void @nb_meet(ptr %ctx, i64 %meeting, i64 %mask, i64 %first, i64 %second, i64 %third) noinline {
  %meeting_at = getelementptr i64, ptr %ctx, i64 @meeting@
  store i64 %meeting, ptr %meeting_at
  %mask_at = getelementptr i64, ptr %ctx, i64 @mask@
  store i64 %mask, ptr %mask_at
  %first_at = getelementptr i64, ptr %ctx, i64 @first@
  store i64 %first, ptr %first_at
  %second_at = getelementptr i64, ptr %ctx, i64 @second@
  store i64 %second, ptr %second_at
  %third_at = getelementptr i64, ptr %ctx, i64 @third@
  store i64 %third, ptr %third_at
  %swap_at = getelementptr i64, ptr %ctx, i64 @swap@
  %swap = load ptr, ptr %swap_at
  %state_at = getelementptr i64, ptr %ctx, i64 @state@
  %state = load ptr, ptr %state_at
  %back_at = getelementptr i64, ptr %ctx, i64 @back@
  %back = load ptr, ptr %back_at
  call i32 %swap(ptr %state, ptr %back)
  ret void
}
; The scheduler prints for its threads: Python code must not run on their stacks.
define internal void @nb_print(ptr %ctx, i64 %meeting, i64 %text, i64 %values) noinline {
  %swap_at = getelementptr i64, ptr %ctx, i64 @swap@
  %swap = load i64, ptr %swap_at
  %alone = icmp eq i64 %swap, 0
  br i1 %alone, label %here, label %there
here:
  %print_at = getelementptr i64, ptr %ctx, i64 @print@
  %print = load ptr, ptr %print_at
  call i32 %print(i64 %text, i64 %values)
  ret void
there:
  call void @nb_meet(ptr %ctx, i64 %meeting, i64 0, i64 %text, i64 %values, i64 0)
  ret void
}
"""
# What runs one thread until it ends, after which it goes back for good; and what runs those of a block, one after another.
_ENTRIES = """
define void @nb_fiber(ptr %ctx) {{
  %mark = alloca i64
  %top_at = getelementptr i64, ptr %ctx, i64 @top@
  %top = ptrtoint ptr %mark to i64
  store i64 %top, ptr %top_at
  %parameters_at = getelementptr i64, ptr %ctx, i64 @parameters@
  %parameters = load ptr, ptr %parameters_at
  call void @"{kernel}"(ptr %ctx, ptr %parameters) noinline
  call void @nb_meet(ptr %ctx, i64 {ended}, i64 0, i64 0, i64 0, i64 0)
  unreachable
}}
define void @nb_block(ptr %ctx, i64 %count) {{
  %mark = alloca i64
  %top_at = getelementptr i64, ptr %ctx, i64 @top@
  %top = ptrtoint ptr %mark to i64
  store i64 %top, ptr %top_at
  %parameters_at = getelementptr i64, ptr %ctx, i64 @parameters@
  %parameters = load ptr, ptr %parameters_at
  br label %next
next:
  %k = phi i64 [ 0, %0 ], [ %k1, %next ]
  %nx_at = getelementptr i64, ptr %ctx, i64 @ntid.x@
  %nx = load i64, ptr %nx_at
  %ny_at = getelementptr i64, ptr %ctx, i64 @ntid.y@
  %ny = load i64, ptr %ny_at
  %x = urem i64 %k, %nx
  %rest = udiv i64 %k, %nx
  %y = urem i64 %rest, %ny
  %z = udiv i64 %rest, %ny
  store i64 %x, ptr %ctx
  %y_at = getelementptr i64, ptr %ctx, i64 1
  store i64 %y, ptr %y_at
  %z_at = getelementptr i64, ptr %ctx, i64 2
  store i64 %z, ptr %z_at
  call void @"{kernel}"(ptr %ctx, ptr %parameters) noinline
  %k1 = add i64 %k, 1
  %more = icmp ult i64 %k1, %count
  br i1 %more, label %next, label %end
end:
  ret void
}}
"""
# The number of no meeting: a thread has ended.
ENDED = -1


def translate(program: Program, kernel: str) -> tuple[str, list[Meeting]]:
    """Return LLVM IR for a program, and the meetings that it numbers.

    Of the kernel, ``void nb_block(context, count)`` runs threads one after another, and ``void nb_fiber(context)`` runs one of
    those that wait for others.
    """
    module = Module(program)
    bodies = [Body(module, function).translate() for function in program.functions if function.body is not None]
    fixed = _PRELUDE + _ENTRIES.format(kernel=kernel, ended=ENDED)
    fixed = re.sub(r"@([\w.]+)@", lambda found: str(CONTEXT.index(found[1])), fixed)
    parts = [fixed, *(_variable(v) for v in program.variables), *module.helpers.values(), *bodies]
    return "\n".join(parts), module.meetings


def _variable(variable) -> str:
    size = variable.room
    data = variable.initial
    if data is None or not any(data):
        value = "zeroinitializer"
    else:
        value = 'c"' + "".join(f"\\{byte:02x}" for byte in data.ljust(size, b"\0")) + '"'
    return f'@"{variable.name}" = global [{size} x i8] {value}, align {max(variable.align, 16)}'


class Module:
    """What the functions of a program share: `helpers` are what their instructions call, `meetings` where their threads wait."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.variables = {variable.name for variable in program.variables}
        self.functions = {function.name: function for function in program.functions}
        self.helpers: dict[str, str] = {}
        self.meetings: list[Meeting] = []

    def helper(self, name: str, text: str) -> str:
        self.helpers.setdefault(name, text)
        return f"@{name}"

    def meeting(self, meeting: Meeting) -> int:
        """Return the number by which translated code names a meeting."""
        self.meetings.append(meeting)
        return len(self.meetings) - 1


class Body:
    """Translates one function; what instructions need of it are `read`, `write`, `emit` and `do`."""

    def __init__(self, module: Module, function: Function) -> None:
        self.module, self.function = module, function
        self.lines: list[str] = []
        self.slots: list[str] = []
        self.scopes: list[dict[str, tuple[str, int]]] = [{}]
        self.memory: list[dict[str, str]] = [{}]
        self._count = 0
        self._ended = False

    def translate(self) -> str:
        """Return the function's LLVM IR."""
        arguments = ["ptr %ctx"]
        self.slots.append("%carry = alloca i1")
        if self.function.is_kernel:
            arguments.append("ptr %parameters")
            offset = 0
            for each in self.function.parameters:
                offset = -(-offset // each.align) * each.align
                self.slots.append(f'%"p.{each.name}" = getelementptr i8, ptr %parameters, i64 {offset}')
                self.memory[0][each.name] = f'%"p.{each.name}"'
                offset += each.size
        else:
            for each in (*self.function.results, *self.function.parameters):
                arguments.append(f'ptr %"p.{each.name}"')
                self.memory[0][each.name] = f'%"p.{each.name}"'
        for statement in self.function.body:
            self._statement(statement)
        self.end("ret void")
        kind = "" if self.function.is_kernel else "internal "
        head = f'define {kind}void @"{self.function.name}"({", ".join(arguments)}) {{'
        return "\n".join([head, *self.slots, "br label %begin", "begin:", *self.lines, "}"])

    # What statements become

    def _statement(self, statement: Statement) -> None:
        if statement.kind == "open":
            self.scopes.append({})
            self.memory.append({})
        elif statement.kind == "close":
            self.scopes.pop()
            self.memory.pop()
        elif statement.kind == "label":
            self.label(statement.text)
        elif statement.kind == "directive":
            self._directive(statement)
        else:
            self._guarded(statement)

    def _directive(self, statement: Statement) -> None:
        text = statement.text
        if text.startswith(".reg"):
            for name, bits in registers(text):
                slot = f'%"{name}.{self.fresh()}"'
                self.slots.append(f"{slot} = alloca i{bits}")
                self.scopes[-1][name] = (slot, bits)
        elif text.startswith((".local", ".param")):
            for each in declarations(text[1:6], text):
                slot = f'%"{each.name}.{self.fresh()}"'
                self.slots.append(f"{slot} = alloca [{each.size} x i8], align {max(each.align, 16)}")
                self.memory[-1][each.name] = slot
        elif not text.startswith((".pragma", ".loc")):
            raise NotImplementedError(f"PTX line {statement.line}: {text}")

    def _guarded(self, statement: Statement) -> None:
        if not statement.guard:
            instructions.translate(self, statement.text, statement.line)
            return
        name = statement.guard.lstrip("!")
        holds = self.read(name, "pred")
        taken, after = f"g{self.fresh()}", f"g{self.fresh()}"
        ways = (after, taken) if statement.guard.startswith("!") else (taken, after)
        self.end(f"br i1 {holds}, label %{ways[0]}, label %{ways[1]}")
        self.label(taken)
        instructions.translate(self, statement.text, statement.line)
        self.label(after)

    # What instructions ask for

    def fresh(self) -> int:
        self._count += 1
        return self._count

    def emit(self, text: str) -> str:
        """Add an operation that has a value, and return the value's name."""
        name = f"%t{self.fresh()}"
        self.do(f"{name} = {text}")
        return name

    def do(self, text: str) -> None:
        """Add an operation without a value."""
        if self._ended:
            # What nothing jumps to
            self.label(f"u{self.fresh()}")
        self.lines.append(f"  {text}")

    def end(self, text: str) -> None:
        """End the block with a jump."""
        self.do(text)
        self._ended = True

    def label(self, name: str) -> None:
        """Begin a block, into which the one before falls if it has not ended."""
        if not self._ended:
            self.do(f'br label %"{name}"')
        self.lines.append(f'"{name}":')
        self._ended = False

    def word(self, name: str) -> str:
        """Return a word of the context."""
        place = self.emit(f"getelementptr i64, ptr %ctx, i64 {CONTEXT.index(name)}")
        return self.emit(f"load i64, ptr {place}")

    def read(self, operand: str, kind: str) -> str:
        """Return an operand as a value of a PTX type: integer bits, or a floating-point number."""
        bits = BITS[kind]
        value = self._bits(operand, bits)
        return self.emit(f"bitcast i{bits} {value} to {LLVM[kind]}") if kind in LLVM else value

    def _bits(self, operand: str, bits: int) -> str:
        slot = next((scope[operand] for scope in reversed(self.scopes) if operand in scope), None)
        if slot is not None:
            name, width = slot
            value = self.emit(f"load i{width}, ptr {name}")
            if width < bits:
                raise NotImplementedError(f"{operand} has {width} bits, and {bits} are read")
            return value if width == bits else self.emit(f"trunc i{width} {value} to i{bits}")
        if operand.startswith("%"):
            value = self._special(operand[1:])
            return value if bits == 64 else self.emit(f"trunc i64 {value} to i{bits}")
        if operand == "WARP_SZ":
            return str(WARP)
        if re.fullmatch(r"0[fFdD][0-9A-Fa-f]+", operand):
            return str(int(operand[2:], 16))
        if re.fullmatch(r"-?(0[xX][0-9A-Fa-f]+|\d+)U?", operand):
            number = int(operand.rstrip("U"), 0) % (1 << bits)
            return str(number if bits > 1 else ("false", "true")[number])
        return self.emit(f"ptrtoint ptr {self.memory_of(operand)} to i64")

    def _special(self, name: str) -> str:
        """Return a special register as 64 bits; a thread's place in its block tells its warp and lane."""
        if name in _REGISTERS:
            return self.word(name)
        if name == "nwarpid":
            threads = self._product(self.word("ntid.x"), self.word("ntid.y"), self.word("ntid.z"))
            return self.emit(f"udiv i64 {self.emit(f'add i64 {threads}, {WARP - 1}')}, {WARP}")
        row = self._sum(self.word("tid.y"), self._product(self.word("ntid.y"), self.word("tid.z")))
        place = self._sum(self.word("tid.x"), self._product(self.word("ntid.x"), row))
        if name == "warpid":
            return self.emit(f"udiv i64 {place}, {WARP}")
        lane = self.emit(f"urem i64 {place}, {WARP}")
        if name == "laneid":
            return lane
        one = self.emit(f"shl i64 1, {lane}")
        below = self.emit(f"sub i64 {one}, 1")
        masks = {"eq": one, "lt": below, "le": self.emit(f"or i64 {one}, {below}")}
        masks |= {"gt": self.emit(f"xor i64 {masks['le']}, {ONES}"), "ge": self.emit(f"xor i64 {below}, {ONES}")}
        if name.removeprefix("lanemask_") not in masks:
            raise NotImplementedError(f"the special register %{name}")
        return masks[name.removeprefix("lanemask_")]

    def _product(self, *values: str) -> str:
        return functools.reduce(lambda one, other: self.emit(f"mul i64 {one}, {other}"), values)

    def _sum(self, *values: str) -> str:
        return functools.reduce(lambda one, other: self.emit(f"add i64 {one}, {other}"), values)

    def memory_of(self, name: str) -> str:
        """Return the place of a variable or parameter."""
        for scope in reversed(self.memory):
            if name in scope:
                return scope[name]
        if name not in self.module.variables:
            raise NotImplementedError(f"the operand {name!r}")
        return f'@"{name}"'

    def write(self, target: str, value: str, kind: str) -> None:
        """Write a value of a PTX type to a register; a wider one is filled up by sign or with zeros."""
        if target == "_":
            return
        bits = BITS[kind]
        slot, width = next(scope[target] for scope in reversed(self.scopes) if target in scope)
        if kind in LLVM:
            value = self.emit(f"bitcast {LLVM[kind]} {value} to i{bits}")
        if width > bits:
            value = self.emit(f"{'sext' if kind[0] == 's' else 'zext'} i{bits} {value} to i{width}")
        elif width < bits:
            raise NotImplementedError(f"{target} has {width} bits, and {bits} are written")
        self.do(f"store i{width} {value}, ptr {slot}")
