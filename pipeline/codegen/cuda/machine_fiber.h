// Fibers: stacks of their own, and a switch from one to another that saves what a call may not change.
#pragma once

#include <stdlib.h>
#include <sys/mman.h>

#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(MUSCHEDULE_UCONTEXT)
#define MS_SWITCH
#else
#include <ucontext.h>
#endif

namespace ms {
namespace host {

#ifdef MS_SWITCH
extern "C" void ms_switch(void **from, void *to) asm("ms_switch");

#if defined(__x86_64__)
asm(".text\n.globl ms_switch\nms_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n");
constexpr int RETURN = 6, FRAME = 8;  // words: where the address is, and all, so that the stack is as after a call
#else
asm(".text\n.globl ms_switch\nms_switch:\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n  stp x25, x26, [sp, #48]\n"
    "  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n  mov sp, x1\n"
    "  ldp x19, x20, [sp]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n  ldp x25, x26, [sp, #48]\n"
    "  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n  ret\n");
constexpr int RETURN = 11, FRAME = 20;
#endif
#endif

struct Fibers {
    static constexpr int MOST = 1024;
    static constexpr long GUARD = 1 << 16;  // a multiple of every page size: below each stack, so that it cannot grow into the next
    char *memory;
    long stack;
    int made;
#ifdef MS_SWITCH
    void *top[MOST], *main;
#else
    ucontext_t context[MOST], main;
#endif

    // Fresh fibers that begin with `entry`, which never returns. False where there is no memory for them
    bool make(int count, long stack_bytes, void (*entry)()) {
        if (count > made || stack_bytes != stack) {
            release();
            stack = stack_bytes;
            void *got = mmap(nullptr, (stack + GUARD) * count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
            if (got == MAP_FAILED) return false;
            memory = static_cast<char *>(got);
            made = count;
            for (int i = 0; i < count; i++) mprotect(memory + i * (stack + GUARD), GUARD, PROT_NONE);
        }
        for (int i = 0; i < count; i++) {
            char *low = memory + i * (stack + GUARD) + GUARD;
#ifdef MS_SWITCH
            void **frame = reinterpret_cast<void **>(low + stack) - FRAME;
            for (int word = 0; word < FRAME; word++) frame[word] = nullptr;
            frame[RETURN] = reinterpret_cast<void *>(entry);
            top[i] = frame;
#else
            getcontext(&context[i]);
            context[i].uc_stack.ss_sp = low;
            context[i].uc_stack.ss_size = stack;
            makecontext(&context[i], entry, 0);
#endif
        }
        return true;
    }

    void release() {
        if (memory) munmap(memory, (stack + GUARD) * made);
        memory = nullptr;
        made = 0;
    }

#ifdef MS_SWITCH
    void to(int from, int next) { ms_switch(&top[from], top[next]); }
    void to_main(int from) { ms_switch(&top[from], main); }
    void start(int first) { ms_switch(&main, top[first]); }  // returns when a fiber goes to main
#else
    void to(int from, int next) { swapcontext(&context[from], &context[next]); }
    void to_main(int from) { swapcontext(&context[from], &main); }
    void start(int first) { swapcontext(&main, &context[first]); }
#endif
};

}  // namespace host
}  // namespace ms
