"""The export of an artifact as a shared library with a C header, for programs without Python.

The objects of the artifact are linked with a small C file that owns the threads, the arena and the tables; the weights
are inside the library. Only the functions of the header are visible, so that several models fit into one process.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pipeline.codegen.llvm.team_ir import LINE, team_bytes
from pipeline.codegen.module import Port
from pipeline.errors import UserError
from pipeline.runtime.artifact import Artifact, load_artifact

COMPILERS = ("cc", "gcc", "clang")
# What both gcc and clang can ask an x86 CPU for; the rest comes with these on every CPU that was made.
_TESTABLE = ("avx", "avx2", "fma", "bmi", "bmi2", "popcnt", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


def export_shared_library(
    artifact: Path | str, path: Path | str, *, name: str = "", compiler: str | None = None
) -> Path:
    """Writes the library to `path` and the header beside it, with the ending .h; gives the path of the header.

    name      prefix of the C functions; from the file's name when empty
    compiler  a C compiler; the first of cc, gcc and clang when None
    """
    command = compiler or next(filter(None, map(shutil.which, COMPILERS)), None)
    if command is None:
        raise UserError(
            "there is no C compiler",
            where=str(path),
            why=f"none of {', '.join(COMPILERS)} is on the path",
            todo="Install one",
        )
    path = Path(os.path.abspath(path))
    prefix = re.sub(r"\W", "_", name or path.stem.removeprefix("lib"))
    if not prefix or prefix[0].isdigit():
        raise UserError(
            "that is no name in C", where=str(path), why=repr(prefix), todo="Give `name` letters and underscores"
        )
    loaded = load_artifact(artifact, verify=True)
    header = path.with_suffix(".h")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            work = Path(folder)
            _build(loaded, work, prefix, command)
            os.replace(work / "model.h", header)
            os.replace(work / "model.so", path)
    except OSError as error:
        raise UserError(
            "the library cannot be written", where=str(path), why=str(error), todo="Name a folder that is writable"
        ) from error
    return header


def _build(artifact: Artifact, work: Path, prefix: str, command: str) -> None:
    (work / "model.h").write_text(_header(artifact, prefix))
    (work / "model.c").write_text(_source(artifact, prefix))
    (work / "constants").write_bytes(artifact.constants.tobytes())
    for name, code in artifact.objects.items():
        (work / name).write_bytes(code)
    exported = [f"{prefix}_{function}" for function in ("create", "run", "destroy")]
    if sys.platform == "darwin":
        (work / "exports").write_text("".join(f"_{symbol}\n" for symbol in exported))
        visible = ["-Wl,-exported_symbols_list,exports"]
    else:
        (work / "exports").write_text(f"{{ global: {'; '.join(exported)}; local: *; }};\n")
        visible = ["-Wl,--version-script=exports"]
    arguments = [
        "-O2",
        "-fPIC",
        "-shared",
        "model.c",
        *artifact.objects,
        *visible,
        "-lpthread",
        "-lm",
        "-o",
        "model.so",
    ]
    try:
        done = subprocess.run([command, *arguments], cwd=work, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UserError(
            "the C compiler cannot be started", where=command, why=str(error), todo="Name another"
        ) from error
    if done.returncode != 0:
        raise UserError("the C compiler failed", where=command, why=done.stderr.strip() or f"status {done.returncode}")


def _header(artifact: Artifact, prefix: str) -> str:
    def lines(kind: str, ports: tuple[Port, ...]) -> str:
        return "\n".join(
            f"   {kind}[{i}]  {_plain(port.name)}: {port.dtype} {list(port.shape)}, {port.nbytes} bytes"
            for i, port in enumerate(ports)
        )

    guard = f"{prefix.upper()}_H"
    return f"""/* A compiled model.

{lines("inputs", artifact.inputs)}
{lines("outputs", artifact.outputs)}

   Tensors are row-major and aligned to their elements. An output must not overlap any other tensor. */
#ifndef {guard}
#define {guard}
#ifdef __cplusplus
extern "C" {{
#endif

#define {prefix.upper()}_INPUTS {len(artifact.inputs)}
#define {prefix.upper()}_OUTPUTS {len(artifact.outputs)}

typedef struct {prefix} {prefix};

/* Makes a runner with that many threads, the caller's included (0: {artifact.threads}, which is also the most).
   NULL when memory or threads are short, or when this CPU cannot run the model. */
{prefix} *{prefix}_create(int threads);

/* Fills the outputs. Calls from several threads follow one another. 0 is success. */
int {prefix}_run({prefix} *model, const void *const *inputs, void *const *outputs);

/* Ends the threads and frees the memory. No call may be running. NULL is fine. */
void {prefix}_destroy({prefix} *model);

#ifdef __cplusplus
}}
#endif
#endif
"""


def _source(artifact: Artifact, prefix: str) -> str:
    needs = [name for name in _TESTABLE if name in artifact.target["needs"]]
    x86 = str(artifact.target["triple"]).startswith(("x86_64", "amd64"))
    checks = "\n".join(f'    if (!__builtin_cpu_supports("{name}")) return 0;' for name in needs) if x86 else ""
    init = "    __builtin_cpu_init();" if checks else ""
    apple = sys.platform == "darwin"
    section, symbol = (
        (".const_data", "_muschedule_constants") if apple else (".section .rodata", "muschedule_constants")
    )
    return (
        _SOURCE.replace("SECTION", section)
        .replace("SYMBOL", symbol)
        .replace("CHECKS", f"{init}\n{checks}")
        .replace("TEAM_BYTES", str(team_bytes(artifact.threads)))
        .replace("LINE", str(LINE))
        .replace("N_INPUTS", str(len(artifact.inputs)))
        .replace("N_OUTPUTS", str(len(artifact.outputs)))
        .replace("MOST_THREADS", str(artifact.threads))
        .replace("ARENA_BYTES", str(max(64, artifact.memory.arena_bytes)))
        .replace("SLOTS", str(artifact.slots + 1))
        .replace("PREFIX", prefix)
    )


def _plain(name: str) -> str:
    """The name as it may stand in a C comment."""
    return re.sub(r"[^\w .:/-]", "?", name).replace("*/", "?").replace("/*", "?")


_SOURCE = r"""
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#include "model.h"

__asm__(
    "SECTION\n"
    ".balign 64\n"
    "SYMBOL:\n"
    ".incbin \"constants\"\n"
    ".byte 0\n"
    ".text\n");
extern const char muschedule_constants[];

void muschedule_main(void **buffers, int64_t thread, int64_t threads, void *barrier);
void muschedule_bind(void **buffers);
void muschedule_worker(void *team, int64_t thread);
void muschedule_run(void *team, void *job, void **buffers);
void muschedule_stop(void *team);

struct worker {
    PREFIX *model;
    int thread;
    pthread_t handle;
};

enum { HUGE_PAGE = 1 << 21 };

struct PREFIX {
    void *buffers[N_INPUTS + N_OUTPUTS + 3];
    void *table[SLOTS];
    void *arena;
    int64_t *team;
    int threads, started;
    pthread_mutex_t lock;
    struct worker workers[MOST_THREADS];
};

static int cpu_fits(void) {
CHECKS
    return 1;
}

static void *work(void *argument) {
    struct worker *self = argument;
    muschedule_worker(self->model->team, self->thread);
    return NULL;
}

PREFIX *PREFIX_create(int threads) {
    if (threads == 0) threads = MOST_THREADS;
    if (threads < 1 || threads > MOST_THREADS || !cpu_fits()) return NULL;
    PREFIX *model = calloc(1, sizeof *model);
    if (model == NULL) return NULL;
    model->threads = threads;
    model->started = 1;
    pthread_mutex_init(&model->lock, NULL);
    void *team = NULL;
    size_t alignment = ARENA_BYTES >= HUGE_PAGE ? HUGE_PAGE : 64;
    if (posix_memalign(&model->arena, alignment, ARENA_BYTES) != 0 || posix_memalign(&team, LINE, TEAM_BYTES) != 0) {
        PREFIX_destroy(model);
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    if (alignment == HUGE_PAGE) madvise(model->arena, ARENA_BYTES, MADV_HUGEPAGE); /* fewer TLB misses */
#endif
    memset(model->arena, 0, ARENA_BYTES);
    memset(team, 0, TEAM_BYTES);
    model->team = team;
    model->team[0] = threads;
    model->team[1] = 100000; /* nanoseconds that an idle worker spins */
    model->buffers[N_INPUTS + N_OUTPUTS] = (void *)muschedule_constants;
    model->buffers[N_INPUTS + N_OUTPUTS + 1] = model->arena;
    model->buffers[N_INPUTS + N_OUTPUTS + 2] = model->table;
    muschedule_bind(model->buffers);
    for (int i = 1; i < threads; i++) {
        model->workers[i].model = model;
        model->workers[i].thread = i;
        if (pthread_create(&model->workers[i].handle, NULL, work, &model->workers[i]) != 0) {
            PREFIX_destroy(model);
            return NULL;
        }
        model->started++;
    }
    return model;
}

int PREFIX_run(PREFIX *model, const void *const *inputs, void *const *outputs) {
    if (model == NULL) return 1;
    pthread_mutex_lock(&model->lock);
    for (int i = 0; i < N_INPUTS; i++) model->buffers[i] = (void *)inputs[i];
    for (int i = 0; i < N_OUTPUTS; i++) model->buffers[N_INPUTS + i] = outputs[i];
    if (model->threads == 1) muschedule_main(model->buffers, 0, 1, NULL);
    else muschedule_run(model->team, (void *)muschedule_main, model->buffers);
    pthread_mutex_unlock(&model->lock);
    return 0;
}

void PREFIX_destroy(PREFIX *model) {
    if (model == NULL) return;
    if (model->team != NULL) {
        muschedule_stop(model->team);
        for (int i = 1; i < model->started; i++) pthread_join(model->workers[i].handle, NULL);
    }
    pthread_mutex_destroy(&model->lock);
    free(model->team);
    free(model->arena);
    free(model);
}
"""
