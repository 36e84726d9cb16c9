#!/usr/bin/awk -f
# SPDX-FileCopyrightText: The collprobe authors
# SPDX-License-Identifier: Apache-2.0
#
# Google Benchmark's JSON, one key a line, as tables: one for each first part of the names, a row for each benchmark,
# a column for each counter.
function number(text) {
    if (text !~ /^[-+0-9.eE]+$/) return text
    value = text + 0
    size = value < 0 ? -value : value
    if (value == int(value) && size < 1e6) return sprintf("%d", value)
    return sprintf(size >= 100 ? "%.0f" : size >= 10 ? "%.1f" : size >= 0.1 ? "%.3f" : "%.2g", value)
}
function print_family(family, columns, rows, i, k, cells, line, rule) {
    columns = width[family]
    rows = height[family]
    line = "| case | time |"
    rule = "|---|---|"
    for (i = 1; i <= columns; ++i) { line = line " " column[family, i] " |"; rule = rule "---|" }
    printf "\n## %s\n\n%s\n%s\n", family, line, rule
    for (k = 1; k <= rows; ++k) {
        line = "| " title[family, k] " | " time[family, k] " |"
        for (i = 1; i <= columns; ++i) line = line " " cell[family, k, column[family, i]] " |"
        print line
    }
}
/^ *"benchmarks": *\[/ { inside = 1; next }
!inside { next }
/^ *\{/ { name = ""; unit = ""; count = 0; message = ""; next }
/^ *"/ {
    key = $0
    sub(/^ *"/, "", key)
    value = key
    sub(/".*/, "", key)
    sub(/^[^"]*": */, "", value)
    sub(/,$/, "", value)
    gsub(/^"|"$/, "", value)
    if (key == "name") name = value
    else if (key == "time_unit") unit = value
    else if (key == "real_time") real = value
    else if (key == "error_message" || key == "skip_message") message = value
    else if (key !~ /^(family_index|per_family_instance_index|run_name|run_type|repetitions|repetition_index|threads|iterations|cpu_time|error_occurred|skipped)$/) {
        ++count
        keys[count] = key
        values[count] = value
    }
    next
}
/^ *\}/ {
    if (name == "") next
    family = name
    sub(/\/.*/, "", family)
    short = name
    sub(/^[^\/]*\//, "", short)
    gsub(/\/(iterations:[0-9]+|manual_time|real_time)/, "", short)
    if (!(family in height)) families[++family_count] = family
    row = ++height[family]
    title[family, row] = short
    time[family, row] = message != "" ? "not measured: " message : number(real) " " unit
    for (i = 1; message == "" && i <= count; ++i) {
        if (!((family, keys[i]) in known)) { known[family, keys[i]] = 1; column[family, ++width[family]] = keys[i] }
        cell[family, row, keys[i]] = number(values[i])
    }
    name = ""
}
END { for (f = 1; f <= family_count; ++f) print_family(families[f]) }
