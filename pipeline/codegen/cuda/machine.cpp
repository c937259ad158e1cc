// The machine that kernels run on: the threads of a block as fibers, barriers, collectives, checks and counts.
//
// Threads run one after another until they must wait, so what they may do at the same time is not tried but deduced:
// every element of shared memory and of written global memory remembers who touched it since the last barrier (a
// Cell). Two touches of one element by different threads, one a write, are a race unless a barrier of the block, or
// of the warp where both are in it, lies between; a shuffle or a matrix product orders no memory, as CUDA says.
#define MUSCHEDULE_MACHINE
#include "machine.h"

#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "machine_fiber.h"

namespace ms {
namespace host {

constexpr int THREADS = 1024, WARPS = 32, REGIONS = 512, FAULTS = 64, NAMES = 64, NAME = 48;
constexpr uint16_t THREAD = 1023, IN_FLIGHT = 0x8000;                             // of Cell::writer
constexpr uint16_t MANY_LANES = 0x8000, MANY_WARPS = 0x4000, MANY_BLOCKS = 0x2000;  // of Cell::reader

// Who wrote an element last, and who read it since. An epoch ends at each barrier of the block, and never comes again;
// 0: never. A warp epoch ends at each barrier of the warp
struct Cell {
    uint32_t write_epoch;
    uint16_t write_warp_epoch, writer;
    uint32_t read_epoch;
    uint16_t read_warp_epoch, reader;
};

struct Region {
    char *data;
    long long bytes, base;  // base: where it begins in shared memory
    Cell *cells;            // one for each 1 << shift bytes; none where nobody writes
    int shift, item, number;
    long long declared;  // bytes; `bytes` is 0 where they do not fit
    bool shared;
    char name[NAME];
};

enum Kind {
    BOUNDS, MISALIGNED, RACE, BLOCK_RACE, UNWRITTEN, ASYNC_READ, ASYNC_WRITE, BARRIER, WARP, SHARED_SIZE, ENDLESS, CRASH
};

struct Fault {
    int kind, line, other_line, thread, other, block[3], region, bytes;
    long long element, times;
};

struct Copy {
    Cell *cells;
    int count, group;
};

struct Thread {
    Copy *copies;
    int first, last, capacity, group;  // copies[first .. last) are in flight; group: the one that is open
    int line;                          // of the barrier or collective that it waits at
    int phase;  // how many collectives, commits and waits it has passed, which all lanes pass alike
};

struct Warp {
    uint32_t runnable, waiting, full;  // lanes that may go on, that wait at a collective, whose log is full
    int lanes, met;
    uint16_t epoch;
    const char *collective;
    Exchange exchange;
};

struct Machine {
    bool checked, counted;
    int granule;  // bytes of shared memory that a cell stands for, as a shift
    int threads, warps, arrived, finished;
    uint32_t epoch, block_start, launch_start;
    long long budget;  // of accesses and barriers: when it is used up the kernel is taken for endless
    char *shared;
    long long shared_bytes, shared_capacity;
    Cell *shared_cells;
    int regions, first_shared;
    Region region[REGIONS];
    Fault fault[FAULTS];
    int faults;
    bool aborted;
    void (*call)(Region **);
    Region **arguments;
    Thread thread[THREADS];
    Warp warp[WARPS];
    Fibers fibers;
    long long barriers, math;
    int names;
    char name[NAMES][NAME];
    const char *literal[NAMES];
    long long collectives[NAMES];
};

static Machine m;
static char scrap[64];  // what is out of bounds is read from and written to here

extern "C" {
Current ms_current;
}

static void fault(Kind kind, int line, Region *region, long long offset, int bytes, int other, int other_line = 0) {
    const int number = region ? region->number : -1;
    for (int i = 0; i < m.faults; i++) {
        Fault &f = m.fault[i];
        if (f.kind == kind && f.line == line && f.region == number) {
            f.times++;
            return;
        }
    }
    if (m.faults == FAULTS) return;
    Fault &f = m.fault[m.faults++];
    const Current &at = ms_current;
    f = {kind, line, other_line, at.thread, other, {at.block[0], at.block[1], at.block[2]}, number, bytes,
         region ? offset / region->item : offset, 1};
    if (region && offset < 0 && offset % region->item) f.element--;
}

#include "machine_count.h"

// The next thread: of this warp as long as one of its lanes can go on, so that its accesses are counted together
static void leave() {
    int w = ms_current.warp;
    uint32_t mask = m.warp[w].runnable;
    if (mask) {
        const uint32_t above = mask & ~0u << ms_current.lane << 1;
        mask = above ? above : mask;
    } else {
        if (m.counted) flush();
        if (m.warp[w].full) {
            m.warp[w].runnable = m.warp[w].full;
            m.warp[w].full = 0;
        }
        int tried = 0;
        while (tried < m.warps && !m.warp[w].runnable) {
            tried++;
            w = w + 1 < m.warps ? w + 1 : 0;
        }
        mask = m.warp[w].runnable;
        if (!mask) return m.fibers.to_main(ms_current.thread);
    }
    const int from = ms_current.thread, lane = __builtin_ctz(mask);
    if (w * 32 + lane == from) return;
    ms_current.thread = w * 32 + lane;
    ms_current.lane = lane;
    ms_current.warp = w;
    m.fibers.to(from, ms_current.thread);
}

static void stop() {
    m.aborted = true;
    m.fibers.to_main(ms_current.thread);
}

static void spend(int line) {
    if (--m.budget >= 0) return;
    fault(ENDLESS, line, nullptr, 0, 0, -1);
    stop();
}

static void run_thread() {
    for (;;) {  // once for each block
        m.call(m.arguments);
        m.finished++;
        m.thread[ms_current.thread].line = -1;
        m.warp[ms_current.warp].runnable &= ~(1u << ms_current.lane);
        leave();
    }
}

static bool same_epoch_conflict(uint16_t other, uint16_t warp_epoch, const Warp &warp) {
    return other >> 5 != ms_current.warp || warp_epoch >= warp.epoch;
}

static void check_read(Region *r, Cell &c, long long offset, int bytes, int line, bool whole_warp) {
    const int me = ms_current.thread;
    const Warp &warp = m.warp[ms_current.warp];
    // Read by many warps already, or by this thread alone, and written before the last barrier: nothing new
    if (c.read_epoch == m.epoch && c.write_epoch < m.epoch && c.read_warp_epoch == warp.epoch && !(c.writer & IN_FLIGHT) &&
        (c.reader & THREAD) >> 5 == ms_current.warp && (c.reader & MANY_LANES || c.reader == me) && !whole_warp)
        return;
    const uint32_t since = r->shared ? m.block_start : 1;
    if (c.write_epoch < since) {
        fault(UNWRITTEN, line, r, offset, bytes, -1);
        c.write_epoch = since;  // once for each element
        c.writer = me;
    } else if (c.write_epoch >= m.launch_start) {
        const int writer = c.writer & THREAD;
        if (c.write_epoch < m.block_start) {
            if (!r->shared) fault(BLOCK_RACE, line, r, offset, bytes, -1);
        } else if (c.writer & IN_FLIGHT) {
            fault(ASYNC_READ, line, r, offset, bytes, writer);
        } else if (c.write_epoch == m.epoch && (writer != me || whole_warp) &&
                   same_epoch_conflict(writer, c.write_warp_epoch, warp)) {
            fault(RACE, line, r, offset, bytes, writer);
        }
    }
    if (c.read_epoch == m.epoch) {
        const int reader = c.reader & THREAD;
        if (reader >> 5 != ms_current.warp) {
            c.reader = me | MANY_WARPS | (c.reader & MANY_BLOCKS);
            c.read_warp_epoch = warp.epoch;
        } else if (c.read_warp_epoch != warp.epoch) {
            c.reader = me | (c.reader & (MANY_WARPS | MANY_BLOCKS));
            c.read_warp_epoch = warp.epoch;
        } else if (reader != me) {
            c.reader |= MANY_LANES;
        }
    } else {
        const bool blocks = c.read_epoch >= m.launch_start && (c.read_epoch < m.block_start || c.reader & MANY_BLOCKS);
        c.reader = me | (blocks ? MANY_BLOCKS : 0);
        c.read_warp_epoch = warp.epoch;
        c.read_epoch = m.epoch;
    }
    if (whole_warp) c.reader |= MANY_LANES;
}

static void check_write(Region *r, Cell &c, long long offset, int bytes, int line, bool copied) {
    const int me = ms_current.thread;
    const Warp &warp = m.warp[ms_current.warp];
    if (c.write_epoch >= m.launch_start) {
        const int writer = c.writer & THREAD;
        if (c.write_epoch < m.block_start) {
            if (!r->shared) fault(BLOCK_RACE, line, r, offset, bytes, -1);
        } else if (c.writer & IN_FLIGHT) {
            fault(ASYNC_WRITE, line, r, offset, bytes, writer);
        } else if (c.write_epoch == m.epoch && writer != me && same_epoch_conflict(writer, c.write_warp_epoch, warp)) {
            fault(RACE, line, r, offset, bytes, writer);
        }
    }
    if (c.read_epoch >= m.launch_start) {
        const int reader = c.reader & THREAD;
        if (!r->shared && (c.read_epoch < m.block_start || c.reader & MANY_BLOCKS)) {
            fault(BLOCK_RACE, line, r, offset, bytes, -1);
        } else if (c.read_epoch == m.epoch &&
                   (c.reader & MANY_WARPS || reader >> 5 != ms_current.warp ||
                    (c.read_warp_epoch >= warp.epoch && (reader != me || c.reader & MANY_LANES)))) {
            fault(RACE, line, r, offset, bytes, reader);
        }
    }
    c.write_epoch = m.epoch;
    c.write_warp_epoch = warp.epoch;
    c.writer = copied ? me | IN_FLIGHT : me;
}

static void start_copy(Cell *cells, int count) {
    Thread &t = m.thread[ms_current.thread];
    if (t.first == t.last) t.first = t.last = 0;
    if (t.last == t.capacity) {
        t.capacity = t.capacity ? 2 * t.capacity : 64;
        t.copies = static_cast<Copy *>(realloc(t.copies, t.capacity * sizeof(Copy)));
    }
    t.copies[t.last++] = {cells, count, t.group};
}

extern "C" {

char *ms_touch(Region *r, long long offset, int bytes, int access, int line) {
    if (--m.budget < 0) spend(line);
    if (offset < 0 || offset + bytes > r->bytes) {
        fault(BOUNDS, line, r, offset, bytes, -1);
        memset(scrap, 0, sizeof scrap);
        return scrap;
    }
    if ((r->base + offset) & (bytes - 1)) fault(MISALIGNED, line, r, offset, bytes, -1);
    if (m.counted) note(r, offset, bytes, access, line, __builtin_return_address(0));
    if (!m.checked) {
        if (access == WRITE && r->cells && !r->shared)
            for (int i = 0; i < bytes; i += r->item) r->cells[(offset + i) >> r->shift].write_epoch = m.epoch;
    } else if (r->cells) {
        Cell *cell = r->cells + ((r->base + offset) >> r->shift);
        Cell *end = r->cells + ((r->base + offset + bytes - 1) >> r->shift) + 1;
        if (access == COPY_TARGET) start_copy(cell, static_cast<int>(end - cell));
        for (; cell < end; cell++) {
            if (access == WRITE || access == COPY_TARGET) check_write(r, *cell, offset, bytes, line, access == COPY_TARGET);
            else check_read(r, *cell, offset, bytes, line, access == ROW);
        }
    }
    return r->data + offset;
}

Region *ms_shared_region(const char *name, long long offset, long long bytes, int item) {
    for (int i = m.first_shared; i < m.regions; i++)
        if (m.region[i].base == offset && m.region[i].declared == bytes && !strncmp(m.region[i].name, name, NAME - 1))
            return &m.region[i];
    if (m.regions == REGIONS) abort();
    Region &r = m.region[m.regions];
    r = {m.shared + offset, bytes, offset, m.shared_cells, m.granule, item, m.regions, bytes, true, {}};
    strncpy(r.name, name, NAME - 1);
    m.regions++;
    if (offset < 0 || offset + bytes > m.shared_bytes) {
        fault(SHARED_SIZE, 0, &r, offset + bytes, 0, -1);
        r.bytes = 0;  // every access to it is out of bounds
    }
    return &r;
}

void ms_sync(int line) {
    spend(line);
    Warp &warp = m.warp[ms_current.warp];
    Thread &me = m.thread[ms_current.thread];
    me.line = line;
    warp.runnable &= ~(1u << ms_current.lane);
    if (++m.arrived == m.threads) {
        if (m.counted) flush();
        for (int t = 0; t < m.threads; t++)
            if (m.thread[t].line != line) {
                fault(BARRIER, line, nullptr, 0, 0, t, m.thread[t].line);
                break;
            }
        m.arrived = 0;
        m.barriers += m.counted;
        m.epoch++;
        for (int w = 0; w < m.warps; w++) {
            m.warp[w].epoch = 0;
            m.warp[w].runnable = m.warp[w].lanes == 32 ? ~0u : (1u << m.warp[w].lanes) - 1;
        }
    }
    leave();
}

Exchange *ms_exchange() { return &m.warp[ms_current.warp].exchange; }

static void count_collective(const char *name) {
    int i = 0;
    while (i < m.names && m.literal[i] != name) i++;  // where the text of the kernel has it: mostly the same place
    if (i == NAMES) return;
    if (i == m.names) {
        strncpy(m.name[i], name, NAME - 1);
        m.literal[m.names++] = name;
    }
    m.collectives[i]++;
}

void ms_meet(const char *name, void (*compute)(Exchange &), int line) {
    spend(line);
    Warp &warp = m.warp[ms_current.warp];
    Thread &me = m.thread[ms_current.thread];
    me.line = line;
    if (warp.met == 0) warp.collective = name;
    else if (warp.collective != name && strcmp(warp.collective, name)) fault(WARP, line, nullptr, 0, 0, -1);
    if (++warp.met < warp.lanes) {
        warp.waiting |= 1u << ms_current.lane;
        warp.runnable &= ~(1u << ms_current.lane);
        leave();
        me.phase++;
        return;
    }
    warp.exchange.lanes = warp.lanes;
    if (compute) {
        if (warp.lanes < 32) fault(WARP, line, nullptr, 0, 0, -1);
        compute(warp.exchange);
    }
    if (m.counted) count_collective(name);
    me.phase++;
    warp.met = 0;
    warp.runnable |= warp.waiting;
    warp.waiting = 0;
}

void ms_sync_warp(int line) {
    Warp &warp = m.warp[ms_current.warp];
    const uint16_t before = warp.epoch;
    ms_meet("sync_warp", nullptr, line);
    if (warp.epoch == before && warp.epoch < 0xffff) warp.epoch++;
}

void ms_commit() {
    m.thread[ms_current.thread].group++;
    m.thread[ms_current.thread].phase++;
}

void ms_wait(int groups) {
    Thread &t = m.thread[ms_current.thread];
    t.phase++;
    for (; t.first < t.last && t.copies[t.first].group < t.group - groups; t.first++) {
        Cell *cell = t.copies[t.first].cells, *end = cell + t.copies[t.first].count;
        for (; cell < end; cell++)
            if (cell->writer == (ms_current.thread | IN_FLIGHT)) {  // as if it were written now
                cell->writer = ms_current.thread;
                cell->write_epoch = m.epoch;
                cell->write_warp_epoch = m.warp[ms_current.warp].epoch;
            }
    }
}

#define MS_COUNTED(F, S, name) \
    F ms_##name##S(F x) { m.math += m.counted; return __builtin_##name##S(x); }
#define MS_COUNTED_ALL(F, S)                                                                                      \
    MS_COUNTED(F, S, exp) MS_COUNTED(F, S, log) MS_COUNTED(F, S, tanh) MS_COUNTED(F, S, erf) MS_COUNTED(F, S, sqrt) \
    MS_COUNTED(F, S, sin) MS_COUNTED(F, S, cos) MS_COUNTED(F, S, tan) MS_COUNTED(F, S, asin) MS_COUNTED(F, S, acos) \
    MS_COUNTED(F, S, atan) MS_COUNTED(F, S, sinh) MS_COUNTED(F, S, cosh) MS_COUNTED(F, S, asinh)                    \
    MS_COUNTED(F, S, acosh) MS_COUNTED(F, S, atanh)                                                                \
    F ms_pow##S(F x, F y) { m.math += m.counted; return __builtin_pow##S(x, y); }
MS_COUNTED_ALL(float, f)
MS_COUNTED_ALL(double, )

}  // extern "C"
}  // namespace host
}  // namespace ms

#include "machine_control.h"
#include "machine_product.h"
