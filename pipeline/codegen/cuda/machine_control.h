// What Python calls. Part of machine.cpp.

using namespace ms::host;

static_assert(sizeof(Fault) == 56 && sizeof(Traffic) == 40 && sizeof(Cell) == 16, "execute_machine.py reads these");

static long long cells_bytes(const Region &r) { return (r.bytes / r.item) * (long long)sizeof(Cell); }

static Cell *make_cells(long long bytes) {
    if (!bytes) return nullptr;
    void *got = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    return got == MAP_FAILED ? nullptr : static_cast<Cell *>(got);
}

// No thread can go on: one waits for a collective that others of its warp do not reach, or else at a barrier
static void report_stuck() {
    int stuck = -1, gone = -1;
    bool warp = false;
    for (int t = 0; t < m.threads && !warp; t++) {
        const Warp &w = m.warp[t / 32];
        warp = w.waiting >> t % 32 & 1;
        if (warp || (stuck < 0 && m.thread[t].line >= 0)) stuck = t;
    }
    const int first = warp ? stuck / 32 * 32 : 0, last = warp ? first + m.warp[stuck / 32].lanes : m.threads;
    for (int t = first; t < last && gone < 0; t++) {
        const bool with_it = warp ? m.warp[t / 32].waiting >> t % 32 & 1 : m.thread[t].line >= 0;
        if (!with_it || m.thread[t].line != m.thread[stuck].line) gone = t;
    }
    ms_current.thread = stuck;
    fault(warp ? WARP : BARRIER, m.thread[stuck].line, nullptr, 0, 0, gone, gone < 0 ? 0 : m.thread[gone].line);
}

// While kernels run: what they do to end the process (a stack that is too small, a division by zero, an index outside
// of a thread's own array, which the compiler made a trap of) becomes a fault
static const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
static sigjmp_buf escape;

static void crashed(int signal) {
    fault(CRASH, 0, nullptr, signal, 0, -1);
    siglongjmp(escape, 1);
}

struct Guard {
    struct sigaction old[sizeof SIGNALS / sizeof *SIGNALS];
    stack_t old_stack;
    Guard() {
        static char memory[1 << 16];
        stack_t stack = {};
        stack.ss_sp = memory;
        stack.ss_size = sizeof memory;
        sigaltstack(&stack, &old_stack);
        struct sigaction action = {};
        action.sa_handler = crashed;
        action.sa_flags = SA_ONSTACK;
        int i = 0;
        for (const int signal : SIGNALS) sigaction(signal, &action, &old[i++]);
    }
    ~Guard() {
        int i = 0;
        for (const int signal : SIGNALS) sigaction(signal, &old[i++], nullptr);
        sigaltstack(&old_stack, nullptr);
    }
};

extern "C" {

// Forget everything, and begin with a new set of arguments
void ms_open(int checked, long long budget) {
    for (int i = 0; i < m.first_shared; i++)
        if (m.region[i].cells) munmap(m.region[i].cells, cells_bytes(m.region[i]));
    m.checked = checked;
    m.budget = budget;
    if (m.epoch == 0 || m.epoch > 1u << 31) {  // epochs go on from one execution to the next, as shared memory stays
        m.epoch = 1;                           // what was written before the kernel has epoch 1
        if (m.shared_cells) memset(m.shared_cells, 0, m.shared_capacity * sizeof(Cell));
    }
    m.regions = m.first_shared = 0;
    m.faults = 0;
    m.aborted = false;
}

// The next argument. tracked: kernels write it, and its elements are unwritten at first, or `written`
int ms_argument(const char *name, char *data, long long bytes, int item, int tracked, int written) {
    if (m.regions == REGIONS / 2) return -1;
    Region &r = m.region[m.regions];
    r = {data, bytes, 0, nullptr, __builtin_ctz(item), item, m.regions, bytes, false, {}};
    strncpy(r.name, name, NAME - 1);
    if (tracked && bytes) {
        r.cells = make_cells(cells_bytes(r));
        if (!r.cells) return -1;
        if (written)
            for (long long i = 0; i < bytes / item; i++) r.cells[i].write_epoch = 1;
    }
    m.first_shared = ++m.regions;
    return 0;
}

// From now on all elements of an argument are taken as written
void ms_fill(int argument) {
    const Region &r = m.region[argument];
    for (long long i = 0; r.cells && i < r.bytes / r.item; i++) r.cells[i].write_epoch = 1;
}

// Which elements of an argument have been written
void ms_written(int argument, unsigned char *mask) {
    const Region &r = m.region[argument];
    for (long long i = 0; i < r.bytes / r.item; i++) mask[i] = r.cells && r.cells[i].write_epoch != 0;
}

// Run some blocks of one launch, and count in the first `counted` of them. continued: others of the same launch ran just
// before. 0: all ran to their ends · 1: stopped at a fault · 2: no memory
int ms_launch(void (*call)(Region **), const int *arguments, int count, int threads, long long shared_bytes, int granule,
              long stack_bytes, const int *blocks, long long block_count, long long counted, int continued) {
    static Region *table[REGIONS];
    for (int i = 0; i < count; i++) table[i] = &m.region[arguments[i]];
    m.call = call;
    m.arguments = table;
    m.threads = threads;
    m.warps = (threads + 31) / 32;
    m.granule = granule;
    m.regions = m.first_shared;
    m.aborted = false;
    m.names = 0;
    m.barriers = m.math = 0;
    memset(m.collectives, 0, sizeof m.collectives);
    memset(m.name, 0, sizeof m.name);
    memset(counter.region, 0, sizeof counter.region);
    memset(counter.line, 0, sizeof counter.line);
    memset(counter.instructions, 0, sizeof counter.instructions);
    if (shared_bytes > m.shared_capacity) {
        free(m.shared);
        free(m.shared_cells);
        m.shared_capacity = 0;
        m.shared = static_cast<char *>(aligned_alloc(256, (shared_bytes + 255) / 256 * 256));
        m.shared_cells = static_cast<Cell *>(calloc(shared_bytes, sizeof(Cell)));
        if (!m.shared || !m.shared_cells) return 2;
        m.shared_capacity = shared_bytes;
    }
    m.shared_bytes = shared_bytes;
    if (!m.fibers.make(threads, stack_bytes, run_thread)) return 2;
    if (!continued) m.launch_start = m.epoch + 1;
    Guard guard;
    if (sigsetjmp(escape, 1)) m.aborted = true;
    for (long long b = 0; b < block_count && !m.aborted; b++) {
        m.counted = b < counted;
        m.block_start = ++m.epoch;
        m.arrived = m.finished = 0;
        for (int w = 0; w < m.warps; w++) {
            const int lanes = threads - 32 * w < 32 ? threads - 32 * w : 32;
            Warp &warp = m.warp[w];
            warp.runnable = lanes == 32 ? ~0u : (1u << lanes) - 1;
            warp.waiting = warp.full = 0;
            warp.lanes = lanes;
            warp.met = 0;
            warp.epoch = 0;
        }
        for (int t = 0; t < threads; t++) {
            Thread &thread = m.thread[t];
            thread.first = thread.last = thread.group = thread.line = thread.phase = 0;
        }
        memset(counter.length, 0, sizeof counter.length);
        memset(m.shared, 0xff, shared_bytes);
        for (int i = 0; i < 3; i++) ms_current.block[i] = blocks[3 * b + i];
        ms_current.thread = ms_current.lane = ms_current.warp = 0;
        m.fibers.start(0);
        if (!m.aborted && m.finished < threads) {  // nobody can go on
            report_stuck();
            m.aborted = true;
        }
    }
    m.epoch++;
    return m.aborted;
}

int ms_faults(Fault *into) {
    memcpy(into, m.fault, m.faults * sizeof(Fault));
    const int count = m.faults;
    m.faults = 0;
    return count;
}

const char *ms_region_name(int number) { return number < m.regions ? m.region[number].name : ""; }
int ms_region_count() { return m.regions; }
void ms_traffic(int number, Traffic *loads_and_stores) { memcpy(loads_and_stores, counter.region[number], 2 * sizeof(Traffic)); }
int ms_line_count() { return LINES; }
void ms_line_traffic(Traffic *into) { memcpy(into, counter.line, sizeof counter.line); }
int ms_collective(int i, char *name, long long *times) {
    if (i >= m.names) return 0;
    memcpy(name, m.name[i], NAME);
    *times = m.collectives[i];
    return 1;
}
void ms_instructions(long long *into) {
    memcpy(into, counter.instructions, sizeof counter.instructions);
    into[10] = m.barriers;
    into[11] = m.math;
}

}  // extern "C"
