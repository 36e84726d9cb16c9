#!/bin/sh
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# kernel_resources.sh [file.cu [parts]] >table.md: compiles every kernel of the library (or those of a
# file) for each architecture in ARCHITECTURES, "80 90 100" by default, and prints what the compiler
# says of each: registers, stack, spills, shared memory. Needs nvcc (CUDACXX), no GPU. Exit status 1 if
# any kernel spills or has a stack, 2 if there was nothing to look at. JOBS compilations run at a time.
# Kernels whose name matches MAY_HAVE_STACK may have one: `element_reduction` keeps the pending sums of a binary
# tree in an array, the exact sum of a column that doubles cannot hold has digits, and so have sums of words. Those whose
# name matches MAY_SPILL may spill: none.
#
# kernel_resources.sh check TABLE: compares the kernels of such a table with those of the library, as compiled.
# kernel_resources.sh launched TABLE FOLDER...: looks for the library's kernels that the programs there can launch, and
# that the table has not. Both: exit status 1 and their names if there are any.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
mode=table
case ${1:-} in
check | launched)
    mode=$1
    table=$2
    shift 2
    ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "$mode" = launched ]; then # as ptxas says it of what it compiles
    find "$@" -type f -perm -u+x -exec nm {} + 2>/dev/null \
        | awk -v q="'" '$2 ~ /^[TtWu]$/ && $3 ~ /^_ZN9collprobe.*_kernelI/ && !($3 in seen) {
            seen[$3] = 1
            print "ptxas info : Compiling entry function " q $3 q " for " q "sm_0" q
            print " 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info : Used 0 registers"
        }' >"$work/launched.log"
    set --
fi
file=${1:-$root/tests/cuda/all_kernels.cu}
parts=${2:-1 2 3 4 5 6 7 8 9 10 11 12 13 14 15}
architectures=${ARCHITECTURES:-80 90 100}
nvcc=${CUDACXX:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
jobs=${JOBS:-$(nproc 2>/dev/null || echo 2)}
may_have_stack=${MAY_HAVE_STACK:-element_reduction|sum_rows<exact|sum_rows_(to|of)_words}
may_spill=${MAY_SPILL:-^$}

[ "$mode" = launched ] || for architecture in $architectures; do
    for part in $parts; do echo "$architecture $part"; done
done | xargs -P "$jobs" -L 1 sh -c '
    "$0" -std=c++20 -cubin -arch="sm_$4" -Xptxas -v -DCOLLPROBE_PART="$5" -I "$1/include" -I "$1" "$2" \
        -o "$3/$4_$5.cubin" >"$3/$4_$5.log" 2>&1 || { cat "$3/$4_$5.log" >&2; exit 1; }
' "$nvcc" "$root" "$file" "$work" || {
    echo "kernel_resources.sh: not all of it compiles" >&2
    exit 2
}

# ptxas says, in this order: the name; stack and spills; registers and shared memory.
status=0
cat "$work"/*.log | "${CXXFILT:-c++filt}" -n | awk -v may_have_stack="$may_have_stack" -v may_spill="$may_spill" -v compiler="$("$nvcc" --version | sed -n 's/.*release.*, V/nvcc /p')" '
    function short(name) {
        gsub(/collprobe::(v[0-9_]+(stream_order)?::)?(cuda::|local::)?(detail::)?/, "", name)
        gsub(/std::/, "", name)
        gsub(/small_float<unsigned char, 4, 3>/, "float8_e4m3", name)
        gsub(/small_float<unsigned char, 5, 2>/, "float8_e5m2", name)
        gsub(/small_float<unsigned short, 5, 10>/, "float16", name)
        gsub(/small_float<unsigned short, 8, 7>/, "bfloat16", name)
        gsub(/ >/, ">", name)
        sub(/\(accumulation\)0/, "native", name)
        sub(/\(accumulation\)1/, "float32", name)
        sub(/\(accumulation\)2/, "float64", name)
        sub(/\(accumulation\)3/, "exact", name)
        sub(/^void /, "", name)
        gsub(/\(anonymous namespace\)/, "anonymous", name)
        sub(/\(.*$/, "", name)
        gsub(/, statistics>$|, result_record>$/, ">", name)
        gsub(/unsigned char/, "uint8", name)
        gsub(/signed char/, "int8", name)
        gsub(/unsigned int/, "uint32", name)
        gsub(/unsigned long( long)?/, "uint64", name)
        gsub(/<long/, "<int64", name)
        gsub(/<int([,>])/, "<int32&", name)
        gsub(/<int32<int/, "<int32", name)
        gsub(/> >/, ">>", name)
        gsub(/sum_each_kernel</, "sum_each<", name)
        if (sub(/reduce_kernel<sketched_reducer<statistics_reducer/, "statistics + sketch", name)) sub(/>.*/, ">>", name)
        if (sub(/reduce_kernel<sketched_reducer<result_reducer/, "result + sketch", name)) sub(/>.*/, ">>", name)
        gsub(/reduce_kernel<statistics_reducer/, "statistics", name)
        gsub(/reduce_kernel<result_reducer/, "result", name)
        gsub(/for_each_kernel</, "for_each<", name)
        # A sum rounded to the type of its terms is the usual one.
        split("float8_e4m3 float8_e5m2 float16 bfloat16 float double", types, " ")
        for (i in types) {
            if (name ~ "sum_rows<[a-z0-9_]+, " types[i] ", [0-9]+, " types[i] ">") sub(", " types[i] ">", ">", name)
        }
        gsub(/, true>/, ", digest>", name)
        gsub(/, false>/, ">", name)
        if (name ~ /^(statistics|result)/) sub(/ ?>$/, "", name)
        return name
    }
    /Compiling entry function/ {
        architecture = $0
        sub(/.*for .sm_/, "sm_", architecture)
        sub(/[^0-9a-z_].*/, "", architecture)
        name = $0
        sub(/.*entry function ./, "", name)
        sub(/. for .sm_.*/, "", name)
        name = short(name)
    }
    /bytes stack frame/ { stack = $1; stores = $5; loads = $9 }
    /Used [0-9]+ registers/ {
        registers = $0
        sub(/.*Used /, "", registers)
        sub(/ .*/, "", registers)
        shared = 0
        if ($0 ~ /bytes smem/) {
            shared = $0
            sub(/ bytes smem.*/, "", shared)
            sub(/.*[ +]/, "", shared)
        }
        key = name SUBSEP architecture
        if (!(name in seen)) { seen[name] = 1; names[++count] = name }
        if (!(architecture in known)) { known[architecture] = 1; columns[++width] = architecture }
        cell[key] = registers " / " shared
        if (stack > 0 && stores + loads == 0 && name ~ may_have_stack) {
            cell[key] = cell[key] " / stack " stack
        } else if (stack + stores + loads > 0) {
            cell[key] = cell[key] " **stack " stack ", spill " stores + loads "**"
            spills = 1
        }
        if (stack + stores + loads > 0 && cell[key] ~ /spill/ && name !~ may_spill) {
            finding[key] = "  " name " (" architecture "): stack " stack " bytes, spill stores " stores ", loads " loads "\n"
            bad = 1
        }
        stack = stores = loads = 0
    }
    END {
        if (count == 0) { print "kernel_resources.sh: no kernel found" >"/dev/stderr"; exit 2 }
        # sm_80, sm_90, sm_100
        for (i = 1; i <= width; ++i)
            for (j = i + 1; j <= width; ++j)
                if (substr(columns[i], 4) + 0 > substr(columns[j], 4) + 0) { t = columns[i]; columns[i] = columns[j]; columns[j] = t }
        for (i = 1; i <= count; ++i)
            for (j = i + 1; j <= count; ++j)
                if (names[i] > names[j]) { t = names[i]; names[i] = names[j]; names[j] = t }
        print "Registers a thread / bytes of shared memory a block, by " compiler "; blocks of 256 threads."
        print (!spills ? "No kernel spills a register; none has a stack but where it is given." : "**Some kernels spill**: they are marked.") "\n"
        line = "| kernel |"; rule = "|---|"
        for (i = 1; i <= width; ++i) { line = line " " columns[i] " |"; rule = rule "---|" }
        print line; print rule
        for (k = 1; k <= count; ++k) {
            line = "| " names[k] " |"
            for (i = 1; i <= width; ++i) line = line " " cell[names[k] SUBSEP columns[i]] " |"
            print line
            for (i = 1; i <= width; ++i) spilled = finding[names[k] SUBSEP columns[i]] spilled
        }
        if (bad) { printf "kernels with a stack or spills:\n%s", spilled >"/dev/stderr"; exit 1 }
    }
' >"$work/table.md" || status=$?
if [ "$mode" = table ] || [ "$status" -gt 1 ]; then
    cat "$work/table.md"
    exit "$status"
fi
names() { awk -F ' [|] ' '/^[|] / && !/^[|] kernel/ {print substr($1, 3)}' "$1" | sort -u; }
names "$table" >"$work/listed"
names "$work/table.md" | grep -vE '^launch<|anonymous|testing::|bench::|trainer::|race_lab::' >"$work/found"
if [ "$mode" = launched ]; then comm -13 "$work/listed" "$work/found" >"$work/differ"; else diff "$work/listed" "$work/found" >"$work/differ"; fi
if [ -s "$work/differ" ]; then
    echo "kernel_resources.sh: $(wc -l <"$work/differ") kernels are not as in $table:"
    cat "$work/differ"
    exit 1
fi
echo "$(wc -l <"$work/found") kernels"
exit "$status"
