/* What this CPU can execute. */
#include <cpuid.h>

/* Whether the kernels run here. */
int regard_runs_here(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

/* 0: the CPU does not report AMX, 1: it can execute it, 2: it cannot, since it has no palette of tiles. */
int regard_amx(void) {
    enum { BF16 = 1 << 22, TILE = 1 << 24, INT8 = 1 << 25 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & (BF16 | TILE | INT8))) return 0;
    return __get_cpuid_count(0x1d, 1, &a, &b, &c, &d) && a ? 1 : 2;
}
