// What accesses cost: those that the lanes of a warp make at one place of the text are one instruction.
// Part of machine.cpp.

constexpr int LOG = 2048, LINES = 8192;

struct Note {
    uint64_t offset : 44, phase : 20;  // phase: of its thread
    uint32_t site;  // where the code called, from the launch's function on
    uint16_t line, region : 10, access : 3, size : 3;  // size: bytes as a power of two
};

// requests: instructions of a warp · sectors: of 32 bytes (global) · bytes: that its lanes asked for ·
// wavefronts: turns that shared memory takes · ideal: turns without bank conflicts
struct Traffic {
    long long requests, sectors, bytes, wavefronts, ideal;
    void add(const Traffic &t) {
        requests += t.requests, sectors += t.sectors, bytes += t.bytes, wavefronts += t.wavefronts, ideal += t.ideal;
    }
};

static struct Counter {
    int length[32];
    Note log[32][LOG + 4];  // of the warp that runs; rows begin in different sets of a cache
    Traffic region[REGIONS][2];
    Traffic line[LINES];
    long long instructions[5][2];  // by access, and global or shared
} counter;

// The distinct values of a few, which move to the front
static int distinct(long long *values, int count) {
    int different = 0;
    for (int i = 0; i < count; i++) {
        int j = different;
        while (j > 0 && values[j - 1] != values[i]) j--;
        if (j == 0) values[different++] = values[i];
    }
    return different;
}

// The most pieces that one bank has to give; `banks` of them, a power of two
static int busiest_bank(long long *pieces, int count, int banks) {
    long long first[32];
    uint32_t used = 0;
    bool twice = false;
    for (int i = 0; i < count && !twice; i++) {
        const int bank = pieces[i] & (banks - 1);
        twice = used >> bank & 1 && first[bank] != pieces[i];
        first[bank] = pieces[i];
        used |= 1u << bank;
    }
    if (!twice) return 1;
    int load[32] = {}, most = 0;
    count = distinct(pieces, count);
    for (int i = 0; i < count; i++) {
        const int bank = pieces[i] & (banks - 1);
        if (++load[bank] > most) most = load[bank];
    }
    return most;
}

static int count_sectors(long long *sectors, int count) {
    int changes = 1;
    for (int i = 1; i < count; i++) {
        if (sectors[i] < sectors[i - 1]) return distinct(sectors, count);
        changes += sectors[i] != sectors[i - 1];
    }
    return changes;
}

static void count_group(const Note &note, uint32_t lanes, const long long *offset) {
    const Region &r = m.region[note.region];
    const int bytes = 1 << note.size;
    const bool write = note.access == WRITE || note.access == COPY_TARGET;
    Traffic t = {1, 0, bytes * __builtin_popcount(lanes), 0, 0};
    long long seen[32];
    if (r.shared) {
        const int unit = bytes < 4 ? 4 : bytes, shift = __builtin_ctz(unit), turn = 128 / unit;
        for (int begin = 0; begin < 32; begin += turn) {  // `turn` lanes are served together
            uint32_t part = lanes >> begin & (turn == 32 ? ~0u : (1u << turn) - 1);
            int count = 0;
            for (; part; part &= part - 1) seen[count++] = (r.base + offset[begin + __builtin_ctz(part)]) >> shift;
            if (!count) continue;
            t.wavefronts += busiest_bank(seen, count, turn);
            t.ideal++;
        }
    } else {
        int count = 0;
        for (; lanes; lanes &= lanes - 1) seen[count++] = offset[__builtin_ctz(lanes)] >> 5;
        t.sectors = count_sectors(seen, count);
    }
    counter.region[note.region][write].add(t);
    counter.line[note.line < LINES ? note.line : 0].add(t);
    counter.instructions[note.access][r.shared]++;
}

static bool same_instruction(const Note &a, const Note &b) {  // all but offset and phase
    uint64_t x, y;
    memcpy(&x, &a.site, sizeof x);
    memcpy(&y, &b.site, sizeof y);
    return x == y;
}

static bool before(const Note &a, const Note &b) {
    return a.phase != b.phase ? a.phase < b.phase : a.line != b.line ? a.line < b.line : a.site < b.site;
}

// Lanes went different ways: those that are farthest back in the text go first, and meet the others behind the branch.
// All pass a collective together, so that what lies before it comes before what lies behind it
static void flush_divergent() {
    int next[32] = {};
    for (;;) {
        int leader = -1;
        for (int lane = 0; lane < 32; lane++)
            if (next[lane] < counter.length[lane] &&
                (leader < 0 || before(counter.log[lane][next[lane]], counter.log[leader][next[leader]])))
                leader = lane;
        if (leader < 0) return;
        const Note &first = counter.log[leader][next[leader]];
        uint32_t lanes = 0;
        long long offset[32];
        for (int lane = leader; lane < 32; lane++) {
            if (next[lane] == counter.length[lane]) continue;
            const Note &note = counter.log[lane][next[lane]];
            if (first.phase != note.phase || !same_instruction(first, note)) continue;
            offset[lane] = note.offset;
            lanes |= 1u << lane;
            next[lane]++;
        }
        count_group(first, lanes, offset);
    }
}

// Counts what the warp that runs has done since the last time; its lanes all wait
static void flush() {
    int longest = 0, leader = -1;
    uint32_t lanes = 0;
    bool uniform = true;
    for (int lane = 0; lane < 32; lane++) {
        if (!counter.length[lane]) continue;
        lanes |= 1u << lane;
        if (leader < 0) leader = lane, longest = counter.length[lane];
        uniform = uniform && counter.length[lane] == longest;
    }
    if (!lanes) return;
    for (int i = 0; i < longest && uniform; i++)
        for (uint32_t rest = lanes; rest; rest &= rest - 1)
            if (!same_instruction(counter.log[leader][i], counter.log[__builtin_ctz(rest)][i])) {
                uniform = false;
                break;
            }
    if (uniform) {
        long long offset[32];
        for (int i = 0; i < longest; i++) {
            for (uint32_t rest = lanes; rest; rest &= rest - 1) {
                const int lane = __builtin_ctz(rest);
                offset[lane] = counter.log[lane][i].offset;
            }
            count_group(counter.log[leader][i], lanes, offset);
        }
    } else {
        flush_divergent();
    }
    memset(counter.length, 0, sizeof counter.length);
}

static void leave();

static void note(Region *r, long long offset, int bytes, int access, int line, void *site) {
    const int lane = ms_current.lane;
    if (counter.length[lane] == LOG) {  // wait until the others have got so far
        Warp &warp = m.warp[ms_current.warp];
        warp.full |= 1u << lane;
        warp.runnable &= ~(1u << lane);
        leave();
    }
    Note &n = counter.log[lane][counter.length[lane]++];
    n.offset = offset;
    n.phase = m.thread[ms_current.thread].phase;
    n.site = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(site) - reinterpret_cast<uintptr_t>(m.call) + (1u << 31));
    n.line = line;
    n.region = r->number;
    n.access = access;
    n.size = __builtin_ctz(bytes);
}
