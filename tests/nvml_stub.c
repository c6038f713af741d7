/*
 * A stand-in for NVIDIA's management library, so that the real pynvml runs where there is no GPU.
 *
 * It reads what to answer from the file that STUB_NVML_SCENARIO names, at nvmlInit: whenever nobody has the
 * library open, or the variable names another file. One entry to a line, fields separated by tabs, `#` begins
 * a comment, and a device is meant by its UUID (`*`: any):
 *
 *   driver   550.54.15             cuda  12040
 *   log      path                  every call is appended to it: function, and UUID where it has one
 *   device   uuid  MiB  name       in the order of NVML's indices
 *   mig      uuid  MiB  instance  name              an instance of the device above
 *   value    uuid  key  v1  v2 ...                  one per call, the last one stays; without: Not Supported
 *   process  uuid  pid  MiB|-  [first [last]]       in these listings (1, 2, ...); pid may be `self` or `child`
 *   sample   uuid  pid  percent  round              utilisation, taken at this query; 0: long before
 *   error    uuid  function|*  code  [first [last]] for these calls
 *   delay    function|*  ms
 *
 * Structures are NVML's; see nvml.h. Without a scenario it is a machine whose driver is not loaded.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { DRIVER_NOT_LOADED = 9, NO_DATA = 21, VERSION_MISMATCH = 25 };
enum { MAX_UNITS = 32, MAX_ENTRIES = 512, MAX_VALUES = 64, TEXT = 128 };

typedef struct Unit {
    char uuid[TEXT], name[TEXT];
    uint64_t mib;
    struct Unit *parent; /* of a MIG device */
    unsigned instance, calls, listings, rounds;
} Unit;
typedef struct { char uuid[TEXT], key[TEXT]; double values[MAX_VALUES]; int count, next; } Value;
typedef struct { char uuid[TEXT], pid[TEXT]; int64_t mib; unsigned first, last; } Process;
typedef struct { char uuid[TEXT]; unsigned pid, percent, round; uint64_t time; } Sample;
typedef struct { char uuid[TEXT], function[TEXT]; int code; unsigned first, last, calls; } Error;
typedef struct { char function[TEXT]; int ms; } Delay;

static struct {
    char path[4096], log[4096], driver[TEXT];
    int cuda, units, values, processes, samples, errors, delays;
    Unit unit[MAX_UNITS];
    Value value[MAX_ENTRIES];
    Process process[MAX_ENTRIES];
    Sample sample[MAX_ENTRIES];
    Error error[MAX_ENTRIES];
    Delay delay[MAX_ENTRIES];
} scene;
static int opened;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t microseconds(clockid_t id)
{
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

static void copy(char *into, const char *text, size_t size)
{
    snprintf(into, size, "%s", text ? text : "");
}

static unsigned number(const char *text, unsigned otherwise)
{
    return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

static int is_full(int count, int limit)
{
    if (count >= limit)
        fprintf(stderr, "nvml_stub: too many entries of one kind\n");
    return count >= limit;
}

static void take(char *line)
{
    char *field[MAX_VALUES + 4] = {0}, *rest = line;
    int n = 0;
    while (rest && n < MAX_VALUES + 4)
        field[n++] = strsep(&rest, "\t");
    if (!strcmp(field[0], "driver")) {
        copy(scene.driver, field[1], TEXT);
    } else if (!strcmp(field[0], "cuda")) {
        scene.cuda = (int)number(field[1], 0);
    } else if (!strcmp(field[0], "log")) {
        copy(scene.log, field[1], sizeof scene.log);
    } else if (!strcmp(field[0], "device") && n == 4 && !is_full(scene.units, MAX_UNITS)) {
        Unit *unit = &scene.unit[scene.units++];
        copy(unit->uuid, field[1], TEXT);
        unit->mib = number(field[2], 0);
        copy(unit->name, field[3], TEXT);
    } else if (!strcmp(field[0], "mig") && n == 5 && scene.units && !is_full(scene.units, MAX_UNITS)) {
        Unit *before = &scene.unit[scene.units - 1], *unit = &scene.unit[scene.units++];
        unit->parent = before->parent ? before->parent : before;
        copy(unit->uuid, field[1], TEXT);
        unit->mib = number(field[2], 0);
        unit->instance = number(field[3], 0);
        copy(unit->name, field[4], TEXT);
    } else if (!strcmp(field[0], "value") && n >= 4 && !is_full(scene.values, MAX_ENTRIES)) {
        Value *value = &scene.value[scene.values++];
        copy(value->uuid, field[1], TEXT);
        copy(value->key, field[2], TEXT);
        for (int i = 3; i < n && value->count < MAX_VALUES; i++)
            value->values[value->count++] = strtod(field[i], NULL);
    } else if (!strcmp(field[0], "process") && n >= 4 && !is_full(scene.processes, MAX_ENTRIES)) {
        Process *process = &scene.process[scene.processes++];
        copy(process->uuid, field[1], TEXT);
        copy(process->pid, field[2], TEXT);
        process->mib = strcmp(field[3], "-") ? (int64_t)number(field[3], 0) : -1;
        process->first = number(field[4], 1);
        process->last = number(field[5], ~0u);
    } else if (!strcmp(field[0], "sample") && n == 5 && !is_full(scene.samples, MAX_ENTRIES)) {
        Sample *sample = &scene.sample[scene.samples++];
        copy(sample->uuid, field[1], TEXT);
        sample->pid = number(field[2], 0);
        sample->percent = number(field[3], 0);
        sample->round = number(field[4], 0);
        if (!sample->round)
            sample->time = microseconds(CLOCK_REALTIME) - 60000000u;
    } else if (!strcmp(field[0], "error") && n >= 4 && !is_full(scene.errors, MAX_ENTRIES)) {
        Error *error = &scene.error[scene.errors++];
        copy(error->uuid, field[1], TEXT);
        copy(error->function, field[2], TEXT);
        error->code = (int)number(field[3], 0);
        error->first = number(field[4], 1);
        error->last = number(field[5], ~0u);
    } else if (!strcmp(field[0], "delay") && n == 3 && !is_full(scene.delays, MAX_ENTRIES)) {
        Delay *delay = &scene.delay[scene.delays++];
        copy(delay->function, field[1], TEXT);
        delay->ms = (int)number(field[2], 0);
    } else if (field[0][0] && field[0][0] != '#') {
        fprintf(stderr, "nvml_stub: not understood: %s\n", field[0]);
    }
}

static int load(const char *path)
{
    char line[8192];
    FILE *file = path ? fopen(path, "r") : NULL;
    memset(&scene, 0, sizeof scene);
    if (!file)
        return 0;
    copy(scene.path, path, sizeof scene.path);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        take(line);
    }
    fclose(file);
    return 1;
}

static int is_meant(const char *pattern, const char *text)
{
    return !strcmp(pattern, "*") || (text && !strcmp(pattern, text));
}

/* Every function begins here: waits as it is told, is logged, and returns the error that it is told. */
static int enter(const char *function, Unit *unit)
{
    int code = SUCCESS, ms = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < scene.delays; i++)
        if (is_meant(scene.delay[i].function, function))
            ms = scene.delay[i].ms;
    if (scene.log[0]) {
        FILE *log = fopen(scene.log, "a");
        if (log) {
            fprintf(log, "%s%s%s\n", function, unit ? " " : "", unit ? unit->uuid : "");
            fclose(log);
        }
    }
    for (int i = 0; i < scene.errors; i++) {
        Error *error = &scene.error[i];
        if (is_meant(error->function, function) && is_meant(error->uuid, unit ? unit->uuid : NULL)) {
            error->calls++;
            if (error->first <= error->calls && error->calls <= error->last)
                code = error->code;
        }
    }
    pthread_mutex_unlock(&lock);
    if (ms)
        usleep((useconds_t)ms * 1000u);
    return code;
}

static int ask(const char *function, Unit *unit)
{
    return opened ? enter(function, unit) : UNINITIALIZED;
}

static int value_of(const Unit *unit, const char *key, double *found)
{
    int code = NOT_SUPPORTED;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < scene.values; i++) {
        Value *value = &scene.value[i];
        if (!strcmp(value->uuid, unit->uuid) && !strcmp(value->key, key)) {
            *found = value->values[value->next];
            value->next += value->next + 1 < value->count;
            code = SUCCESS;
        }
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int tell(const char *function, Unit *unit, const char *key, double *found)
{
    int code = ask(function, unit);
    return code ? code : value_of(unit, key, found);
}

static int tell_unsigned(const char *function, Unit *unit, const char *key, unsigned *into)
{
    double found = 0;
    int code = tell(function, unit, key, &found);
    if (!code)
        *into = (unsigned)found;
    return code;
}

static int tell_long(const char *function, Unit *unit, const char *key, uint64_t *into)
{
    double found = 0;
    int code = tell(function, unit, key, &found);
    if (!code)
        *into = (uint64_t)found;
    return code;
}

/* The library */

int nvmlInitWithFlags(unsigned flags)
{
    const char *path = getenv("STUB_NVML_SCENARIO");
    int code;
    (void)flags;
    pthread_mutex_lock(&lock);
    if (!opened || !path || strcmp(path, scene.path))
        load(path);
    code = scene.path[0] ? SUCCESS : DRIVER_NOT_LOADED;
    pthread_mutex_unlock(&lock);
    if (!code)
        code = enter("nvmlInitWithFlags", NULL);
    pthread_mutex_lock(&lock);
    opened += !code;
    pthread_mutex_unlock(&lock);
    return code;
}

int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    /* One too many is logged as well. */
    int was = opened, code = enter("nvmlShutdown", NULL);
    pthread_mutex_lock(&lock);
    opened -= opened > 0;
    pthread_mutex_unlock(&lock);
    return was ? code : UNINITIALIZED;
}

const char *nvmlErrorString(int code)
{
    (void)code;
    return "An error that only the library knows";
}

int nvmlSystemGetDriverVersion(char *into, unsigned size)
{
    int code = ask("nvmlSystemGetDriverVersion", NULL);
    copy(into, scene.driver, size);
    return code;
}

int nvmlSystemGetCudaDriverVersion(int *into)
{
    *into = scene.cuda;
    return ask("nvmlSystemGetCudaDriverVersion", NULL);
}

int nvmlSystemGetCudaDriverVersion_v2(int *into) { return nvmlSystemGetCudaDriverVersion(into); }

/* Devices */

int nvmlDeviceGetCount_v2(unsigned *into)
{
    *into = 0;
    for (int i = 0; i < scene.units; i++)
        *into += !scene.unit[i].parent;
    return ask("nvmlDeviceGetCount_v2", NULL);
}

static int nth(const char *function, const Unit *parent, unsigned index, Unit **into)
{
    for (int i = 0; i < scene.units; i++)
        if (scene.unit[i].parent == parent && !index--) {
            *into = &scene.unit[i];
            return ask(function, *into);
        }
    return ask(function, NULL) ? UNINITIALIZED : parent ? NOT_FOUND : INVALID_ARGUMENT;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Unit **into)
{
    return nth("nvmlDeviceGetHandleByIndex_v2", NULL, index, into);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Unit **into)
{
    for (int i = 0; i < scene.units; i++)
        if (!strcmp(scene.unit[i].uuid, uuid)) {
            *into = &scene.unit[i];
            return ask("nvmlDeviceGetHandleByUUID", *into);
        }
    int code = ask("nvmlDeviceGetHandleByUUID", NULL);
    return code ? code : NOT_FOUND;
}

int nvmlDeviceGetName(Unit *unit, char *into, unsigned size)
{
    copy(into, unit->name, size);
    return ask("nvmlDeviceGetName", unit);
}

int nvmlDeviceGetUUID(Unit *unit, char *into, unsigned size)
{
    copy(into, unit->uuid, size);
    return ask("nvmlDeviceGetUUID", unit);
}

int nvmlDeviceGetPersistenceMode(Unit *unit, unsigned *into)
{
    return tell_unsigned("nvmlDeviceGetPersistenceMode", unit, "persistence", into);
}

int nvmlDeviceGetComputeMode(Unit *unit, unsigned *into)
{
    return tell_unsigned("nvmlDeviceGetComputeMode", unit, "compute_mode", into);
}

/* A key `cpus_0` is the mask of cores 0 to 63, `cpus_1` that of the next 64; words without one are empty. */
int nvmlDeviceGetCpuAffinity(Unit *unit, unsigned words, unsigned long *into)
{
    int known = 0, code = ask("nvmlDeviceGetCpuAffinity", unit);
    for (unsigned i = 0; !code && i < words; i++) {
        char key[TEXT];
        double found = 0;
        snprintf(key, TEXT, "cpus_%u", i);
        known |= !value_of(unit, key, &found);
        into[i] = (unsigned long)found;
    }
    return code ? code : known ? SUCCESS : NOT_SUPPORTED;
}

static unsigned instances(const Unit *unit)
{
    unsigned count = 0;
    for (int i = 0; i < scene.units; i++)
        count += scene.unit[i].parent == unit;
    return count;
}

int nvmlDeviceGetMigMode(Unit *unit, unsigned *current, unsigned *pending)
{
    *current = *pending = instances(unit) > 0;
    return ask("nvmlDeviceGetMigMode", unit);
}

int nvmlDeviceGetMaxMigDeviceCount(Unit *unit, unsigned *into)
{
    *into = instances(unit) ? 7 : 0;
    return ask("nvmlDeviceGetMaxMigDeviceCount", unit);
}

int nvmlDeviceGetMigDeviceHandleByIndex(Unit *unit, unsigned index, Unit **into)
{
    return nth("nvmlDeviceGetMigDeviceHandleByIndex", unit, index, into);
}

int nvmlDeviceIsMigDeviceHandle(Unit *unit, unsigned *into)
{
    *into = unit->parent != NULL;
    return ask("nvmlDeviceIsMigDeviceHandle", unit);
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Unit *unit, Unit **into)
{
    *into = unit->parent;
    int code = ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", unit);
    return code ? code : unit->parent ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetGpuInstanceId(Unit *unit, unsigned *into)
{
    *into = unit->instance;
    int code = ask("nvmlDeviceGetGpuInstanceId", unit);
    return code ? code : unit->parent ? SUCCESS : INVALID_ARGUMENT;
}

/* Readings */

int nvmlDeviceGetMemoryInfo(Unit *unit, uint64_t into[3])
{
    double used = 0;
    int code = tell("nvmlDeviceGetMemoryInfo", unit, "mem_used_mib", &used);
    into[0] = unit->mib << 20;
    into[2] = (uint64_t)used << 20;
    into[1] = into[0] - into[2];
    return code;
}

int nvmlDeviceGetUtilizationRates(Unit *unit, unsigned into[2])
{
    double found = 0;
    int code = tell_unsigned("nvmlDeviceGetUtilizationRates", unit, "util_gpu", &into[0]);
    if (!code && !value_of(unit, "util_mem", &found))
        into[1] = (unsigned)found;
    return code;
}

int nvmlDeviceGetPowerUsage(Unit *unit, unsigned *into)
{
    return tell_unsigned("nvmlDeviceGetPowerUsage", unit, "power_mw", into);
}

int nvmlDeviceGetEnforcedPowerLimit(Unit *unit, unsigned *into)
{
    return tell_unsigned("nvmlDeviceGetEnforcedPowerLimit", unit, "power_limit_mw", into);
}

int nvmlDeviceGetPowerManagementLimit(Unit *unit, unsigned *into)
{
    return tell_unsigned("nvmlDeviceGetPowerManagementLimit", unit, "power_limit_mw", into);
}

int nvmlDeviceGetPowerManagementDefaultLimit(Unit *unit, unsigned *into)
{
    return tell_unsigned("nvmlDeviceGetPowerManagementDefaultLimit", unit, "power_default_mw", into);
}

int nvmlDeviceGetPowerManagementLimitConstraints(Unit *unit, unsigned *least, unsigned *most)
{
    int code = tell_unsigned("nvmlDeviceGetPowerManagementLimitConstraints", unit, "power_least_mw", least);
    return code ? code : tell_unsigned("nvmlDeviceGetPowerManagementLimitConstraints", unit, "power_most_mw", most);
}

int nvmlDeviceGetTotalEnergyConsumption(Unit *unit, uint64_t *into)
{
    return tell_long("nvmlDeviceGetTotalEnergyConsumption", unit, "energy_mj", into);
}

int nvmlDeviceGetTemperature(Unit *unit, unsigned sensor, unsigned *into)
{
    return sensor ? INVALID_ARGUMENT : tell_unsigned("nvmlDeviceGetTemperature", unit, "temperature_c", into);
}

typedef struct { unsigned version, sensor; int temperature; } Temperature;

int nvmlDeviceGetTemperatureV(Unit *unit, Temperature *into)
{
    unsigned found = 0;
    if (into->version != (sizeof *into | 1u << 24))
        return VERSION_MISMATCH;
    int code = tell_unsigned("nvmlDeviceGetTemperatureV", unit, "temperature_c", &found);
    into->temperature = (int)found;
    return code;
}

static int clock_of(const char *function, Unit *unit, const char *which, unsigned type, unsigned *into)
{
    char key[TEXT];
    snprintf(key, TEXT, "%s_%s", which, type == 1 ? "sm" : type == 2 ? "mem" : "other");
    return tell_unsigned(function, unit, key, into);
}

int nvmlDeviceGetClockInfo(Unit *unit, unsigned type, unsigned *into)
{
    return clock_of("nvmlDeviceGetClockInfo", unit, "clock", type, into);
}

int nvmlDeviceGetMaxClockInfo(Unit *unit, unsigned type, unsigned *into)
{
    return clock_of("nvmlDeviceGetMaxClockInfo", unit, "max_clock", type, into);
}

int nvmlDeviceGetDefaultApplicationsClock(Unit *unit, unsigned type, unsigned *into)
{
    return clock_of("nvmlDeviceGetDefaultApplicationsClock", unit, "default_clock", type, into);
}

int nvmlDeviceGetCurrentClocksEventReasons(Unit *unit, uint64_t *into)
{
    return tell_long("nvmlDeviceGetCurrentClocksEventReasons", unit, "reasons", into);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Unit *unit, uint64_t *into)
{
    return tell_long("nvmlDeviceGetCurrentClocksThrottleReasons", unit, "reasons", into);
}

int nvmlDeviceGetPcieThroughput(Unit *unit, unsigned counter, unsigned *into)
{
    const char *key = counter == 0 ? "pcie_tx_kib" : counter == 1 ? "pcie_rx_kib" : "";
    return tell_unsigned("nvmlDeviceGetPcieThroughput", unit, key, into);
}

typedef struct {
    uint32_t field, scope;
    int64_t time, latency;
    uint32_t type, code;
    union { unsigned narrow; uint64_t wide; } value;
} Field;

/* A key `field_197` is of 64 bits, `field32_197` of 32, which wrap. */
int nvmlDeviceGetFieldValues(Unit *unit, int count, Field *fields)
{
    int code = ask("nvmlDeviceGetFieldValues", unit);
    for (int i = 0; !code && i < count; i++) {
        char wide[TEXT], narrow[TEXT];
        double found = 0;
        snprintf(wide, TEXT, "field_%u", fields[i].field);
        snprintf(narrow, TEXT, "field32_%u", fields[i].field);
        fields[i].code = (uint32_t)value_of(unit, wide, &found);
        fields[i].type = 3;
        fields[i].value.wide = (uint64_t)found;
        if (fields[i].code && !(fields[i].code = (uint32_t)value_of(unit, narrow, &found))) {
            fields[i].type = 1;
            /* The half that is not the value's is no zero in real life either. */
            fields[i].value.wide = ~(uint64_t)0;
            fields[i].value.narrow = (unsigned)(uint64_t)found;
        }
    }
    return code;
}

/* Processes */

typedef struct { unsigned pid; uint64_t used; unsigned instance, compute; } Info;

/* `child`: the first child of the process that asks, as a trial is its keeper's. */
static unsigned pid_of(const char *text)
{
    char path[TEXT];
    unsigned found = 0;
    if (!strcmp(text, "self"))
        return (unsigned)getpid();
    if (strcmp(text, "child"))
        return number(text, 0);
    snprintf(path, TEXT, "/proc/self/task/%d/children", (int)getpid());
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%u", &found) != 1)
        found = 0;
    if (file)
        fclose(file);
    return found;
}

static int list_processes(const char *function, Unit *unit, unsigned *count, Info *into)
{
    unsigned room = *count, found = 0;
    int code = ask(function, unit);
    if (code)
        return code;
    unit->listings += !into;
    for (int i = 0; i < scene.processes; i++) {
        Process *process = &scene.process[i];
        unsigned pid = pid_of(process->pid);
        /* NVML's caller asks for the number first; without any there is no second question. */
        if (!pid || strcmp(process->uuid, unit->uuid) || unit->listings < process->first ||
            unit->listings > process->last)
            continue;
        if (into && found < room)
            into[found] = (Info){pid, process->mib < 0 ? ~(uint64_t)0 : (uint64_t)process->mib << 20, 0, 0};
        found++;
    }
    *count = found;
    return found > room || (found && !into) ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Unit *unit, unsigned *count, Info *into)
{
    return list_processes("nvmlDeviceGetComputeRunningProcesses_v3", unit, count, into);
}

int nvmlDeviceGetComputeRunningProcesses_v2(Unit *unit, unsigned *count, Info *into)
{
    return list_processes("nvmlDeviceGetComputeRunningProcesses_v2", unit, count, into);
}

typedef struct { unsigned pid; uint64_t time; unsigned sm, memory, encoder, decoder; } Utilisation;

/* Supported where the scenario has samples of the device at all. */
int nvmlDeviceGetProcessUtilization(Unit *unit, Utilisation *into, unsigned *count, uint64_t since)
{
    unsigned room = *count, found = 0;
    int known = 0, code = ask("nvmlDeviceGetProcessUtilization", unit);
    if (code)
        return code;
    unit->rounds += !into;
    for (int i = 0; i < scene.samples; i++) {
        Sample *sample = &scene.sample[i];
        if (strcmp(sample->uuid, unit->uuid))
            continue;
        known = 1;
        if (!sample->time && sample->round <= unit->rounds)
            sample->time = microseconds(CLOCK_REALTIME);
        if (!sample->time || sample->time <= since)
            continue;
        if (into && found < room)
            into[found] = (Utilisation){sample->pid, sample->time, sample->percent, 0, 0, 0};
        found++;
    }
    *count = found;
    return !known ? NOT_SUPPORTED : !found ? NOT_FOUND : into && found <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

/* GPU performance monitoring */

typedef struct { unsigned version, supported; } GpmSupport;
typedef struct { Unit *unit; uint64_t time; } GpmSample;
typedef struct { unsigned id; int code; double value; const char *texts[3]; } GpmMetric;
typedef struct { unsigned version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmMetrics;

int nvmlGpmQueryDeviceSupport(Unit *unit, GpmSupport *into)
{
    double found = 0;
    int code = ask("nvmlGpmQueryDeviceSupport", unit);
    if (into->version != 1)
        return VERSION_MISMATCH;
    if (!code)
        value_of(unit, "gpm", &found);
    into->supported = found != 0;
    return code;
}

int nvmlGpmSampleAlloc(GpmSample **into)
{
    int code = ask("nvmlGpmSampleAlloc", NULL);
    *into = code ? NULL : calloc(1, sizeof **into);
    return code;
}

int nvmlGpmSampleFree(GpmSample *sample)
{
    free(sample);
    return ask("nvmlGpmSampleFree", NULL);
}

int nvmlGpmSampleGet(Unit *unit, GpmSample *into)
{
    int code = ask("nvmlGpmSampleGet", unit);
    *into = (GpmSample){unit, microseconds(CLOCK_MONOTONIC)};
    return code ? code : unit->parent ? INVALID_ARGUMENT : SUCCESS;
}

int nvmlGpmMigSampleGet(Unit *unit, unsigned instance, GpmSample *into)
{
    int code = ask("nvmlGpmMigSampleGet", unit);
    for (int i = 0; !code && i < scene.units; i++)
        if (scene.unit[i].parent == unit && scene.unit[i].instance == instance) {
            *into = (GpmSample){&scene.unit[i], microseconds(CLOCK_MONOTONIC)};
            return SUCCESS;
        }
    return code ? code : INVALID_ARGUMENT;
}

int nvmlGpmMetricsGet(GpmMetrics *metrics)
{
    int code = ask("nvmlGpmMetricsGet", metrics->first ? metrics->first->unit : NULL);
    if (code)
        return code;
    if (metrics->version != 1)
        return VERSION_MISMATCH;
    if (!metrics->first || !metrics->second || !metrics->first->unit ||
        metrics->first->unit != metrics->second->unit)
        return INVALID_ARGUMENT;
    /* The counters behind are refreshed every 100 ms. */
    if (metrics->second->time < metrics->first->time + 100000u)
        return NO_DATA;
    for (unsigned i = 0; i < metrics->count; i++) {
        char key[TEXT];
        snprintf(key, TEXT, "gpm_%u", metrics->metrics[i].id);
        metrics->metrics[i].code = value_of(metrics->first->unit, key, &metrics->metrics[i].value);
    }
    return SUCCESS;
}
