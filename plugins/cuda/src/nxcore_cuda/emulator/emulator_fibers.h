// Fibers for emulator.h: switching from one stack to another, by hand where it pays.
#pragma once

#include <stddef.h>
#include <string.h>
#if !defined(__x86_64__) && !defined(__aarch64__)
#include <ucontext.h>
#endif

namespace nxcore_emulator {

#if defined(__x86_64__)
struct Context {
  void* stack;
};
extern "C" __attribute__((visibility("hidden"))) void nxcore_switch(Context* from, Context* to);
asm(R"(
.text
.hidden nxcore_switch
.globl nxcore_switch
.type nxcore_switch, @function
nxcore_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq (%rsi), %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size nxcore_switch, . - nxcore_switch
)");
inline void begin(Context* context, char* stack, size_t size, void (*run)()) {
  void** top = reinterpret_cast<void**>(stack + size) - 1;  // run() finds its stack as after a call
  *top = nullptr;
  *--top = reinterpret_cast<void*>(run);
  context->stack = top - 6;
}
#elif defined(__aarch64__)
struct Context {
  void* stack;
};
extern "C" __attribute__((visibility("hidden"))) void nxcore_switch(Context* from, Context* to);
asm(R"(
.text
.hidden nxcore_switch
.globl nxcore_switch
.type nxcore_switch, %function
nxcore_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  ldr x9, [x1]
  mov sp, x9
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size nxcore_switch, . - nxcore_switch
)");
inline void begin(Context* context, char* stack, size_t size, void (*run)()) {
  char* top = stack + size - 160;
  memset(top, 0, 160);
  *reinterpret_cast<void**>(top + 88) = reinterpret_cast<void*>(run);
  context->stack = top;
}
#else
struct Context {
  ucontext_t place;
};
inline void nxcore_switch(Context* from, Context* to) { swapcontext(&from->place, &to->place); }
inline void begin(Context* context, char* stack, size_t size, void (*run)()) {
  getcontext(&context->place);
  context->place.uc_stack.ss_sp = stack;
  context->place.uc_stack.ss_size = size;
  context->place.uc_link = nullptr;
  makecontext(&context->place, run, 0);
}
#endif

}  // namespace nxcore_emulator
