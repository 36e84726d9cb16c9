// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Does another program, topology or time hold the same weights? Receipts (replica/receipt.hpp), safetensors and NumPy
// files against an expected one: missing, stale and altered tensors, and the shard. Or writes a receipt of them.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <collprobe/detail/printable.hpp>
#include <collprobe/replica/receipt.hpp>
#include <collprobe/report/file.hpp>

#include "../support/command_line.hpp"
#include "safetensors.hpp"
#include "tensor_files.hpp"

namespace {

using namespace collprobe;

struct bad_input : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// The message of the library's error, without the place in this program.
std::string reason_of(const error& problem)
{
    const std::string text = problem.what();
    const std::string status = std::string(name(problem.code())) + ": ";
    const std::size_t begin = text.find(status);
    if (begin == std::string::npos) return text;
    return text.substr(begin + status.size(), text.rfind(" [") - begin - status.size());
}

struct source {
    std::string path;
    receipt sums;
    std::vector<tools::named_tensor> tensors; ///< of a file with data
    bool is_receipt = false;
};

struct how_to_read {
    /// Null, or a receipt by whose parts tensors are cut, so that a difference is named by its part.
    const receipt* like = nullptr;
    bool is_older = false; ///< with the casts of `like`, to recognise casts of older data
    std::vector<element_cast> casts = {};
    std::uint64_t step = receipt::no_step;
    int rank = -1;
};

/// Files, which stay in memory as long as the parts that point to them.
class sources {
public:
    source read(const std::string& path, const how_to_read& how)
    {
        try {
            const std::string_view text = files_.emplace_back(path).text();
            source made{path, receipt(how.step, how.rank), {}};
            const std::string suffix = std::filesystem::path(path).extension().string();
            if (suffix == ".safetensors") made.tensors = tools::read_safetensors(text);
            else if (suffix == ".npy") made.tensors = {tools::read_npy(text, std::filesystem::path(path).stem().string())};
            else made.is_receipt = true;
            const bool says_so = text.starts_with("{\"collprobe_receipt\":") || text.starts_with("collprobe receipt ");
            if (made.is_receipt && !says_so)
                throw bad_input(path + ": neither *.safetensors nor *.npy, and not a receipt");
            if (made.is_receipt) made.sums = receipt::read(text);
            for (const tools::named_tensor& each : made.tensors) add(made.sums, each, how);
            return made;
        } catch (const tools::bad_tensor_file& problem) {
            const std::string reason = problem.what();
            throw bad_input(reason.find('\'' + path + '\'') == std::string::npos ? path + ": " + reason : reason);
        } catch (const error& problem) {
            throw bad_input(path + ": " + reason_of(problem));
        }
    }

private:
    static void add(receipt& to, const tools::named_tensor& tensor, const how_to_read& how)
    {
        std::vector<element_cast> casts = how.casts;
        if (tensor.type != name(element_type::float32)) casts.clear();
        const receipt_tensor* const wanted = how.like == nullptr ? nullptr : how.like->find(tensor.name);
        if (wanted == nullptr || wanted->shape != tensor.part.shape || wanted->parts.empty()) {
            to.add(tensor.name, tensor.part, casts, tensor.type);
            return;
        }
        if (how.is_older && tensor.type == wanted->type) casts = wanted->casts;
        // Of the same numbers in 16 bits.
        for (const element_type type : {element_type::bfloat16, element_type::float16}) {
            if (tensor.type != name(element_type::float32) || wanted->type != name(type)) continue;
            casts = {{type, cast_rounding::nearest_even}, {type, cast_rounding::toward_zero}};
        }
        for (const receipt_part& part : wanted->parts)
            to.add(tensor.name, tensor.part.within(part.box), casts, tensor.type);
    }

    std::list<tools::mapped_file> files_;
};

void merge(receipt& into, const source& next)
{
    try {
        into.merge(next.sums);
    } catch (const error& problem) {
        throw bad_input(next.path + ": " + reason_of(problem));
    }
}

std::string step_text(std::uint64_t step)
{
    return step == receipt::no_step ? "no step" : "step " + std::to_string(step);
}

std::string counted(std::uint64_t number, const char* thing)
{
    return std::to_string(number) + ' ' + thing + (number == 1 ? "" : "s");
}

/// Digests of two tensors that are of the same type: -1 that of the tensor itself, else the first cast.
struct same_type {
    int expected = -1;
    int found = -1;
};

std::optional<same_type> stated_type(const receipt_tensor& expected, const receipt_tensor& found)
{
    if (expected.type == found.type) return same_type{};
    for (std::size_t i = 0; i < expected.casts.size(); ++i)
        if (name(expected.casts[i].type) == found.type) return same_type{static_cast<int>(i), -1};
    for (std::size_t i = 0; i < found.casts.size(); ++i)
        if (name(found.casts[i].type) == expected.type) return same_type{-1, static_cast<int>(i)};
    return {};
}

bool meet(const tensor_box& a, const tensor_box& b) { return detail::intersection(a, b).extent.elements() != 0; }

/// The digest of a box, if some parts tile it.
std::optional<std::uint64_t> digest_of(const receipt_tensor& of, const tensor_box& box, int cast)
{
    detail::digest_state state;
    std::uint64_t elements = 0;
    for (const receipt_part& part : of.parts) {
        if (!meet(part.box, box)) continue;
        if (detail::intersection(part.box, box) != part.box) return {};
        state.merge(cast < 0 ? part.state : part.casts[static_cast<std::size_t>(cast)]);
        elements += part.box.extent.elements();
    }
    if (elements != box.extent.elements()) return {};
    return state.finish();
}

tensor_box whole_box(tensor_shape shape)
{
    tensor_box box{shape, shape};
    for (std::uint64_t& each : box.first.size) each = 0;
    return box;
}

/// Whether `found` differs from what is expected in the box, as far as is known. `expected` may be null.
bool may_be_wrong(const receipt_tensor* expected, const receipt_tensor& found, const receipt_finding& finding)
{
    if (expected == nullptr || finding.problem < receipt_problem::gap) return true;
    bool has_some = false;
    for (const receipt_part& part : found.parts) has_some = has_some || meet(part.box, finding.box);
    const std::optional<same_type> type = stated_type(*expected, found);
    if (!has_some || !type) return has_some;
    const std::optional<std::uint64_t> wanted = digest_of(*expected, finding.box, type->expected);
    return !wanted || wanted != digest_of(found, finding.box, type->found);
}

/// Whether data has, in a box, what is expected with rows and columns exchanged.
bool is_transposed(const receipt_tensor& expected, const receipt_tensor& found, tensor_part data, const tensor_box& box)
{
    const int last = expected.shape.dimensions - 1;
    const std::optional<same_type> type = stated_type(expected, found);
    if (last < 1 || !type || data.shape.dimensions != expected.shape.dimensions) return false;
    if (box == whole_box(expected.shape)) {
        std::swap(data.shape.size[last], data.shape.size[last - 1]);
        std::swap(data.stride.size[last], data.stride.size[last - 1]);
        data.box = whole_box(data.shape);
        if (data.shape != expected.shape) return false;
    } else {
        if (data.shape != expected.shape || box.extent.size[last] != box.extent.size[last - 1]) return false;
        data = data.within(box).transposed();
    }
    const std::optional<std::uint64_t> wanted = digest_of(expected, box, type->expected);
    if (!wanted) return false;
    if (type->found < 0) return digest_part(data).state.finish() == *wanted;
    const element_cast& cast = found.casts[static_cast<std::size_t>(type->found)];
    return digest_part(data, {&cast, 1}).casts.front().finish() == *wanted;
}

/// The finding in words, with the files that may have caused it. Empty if `known`, the tensors that are transposed as a
/// whole, says all of it.
std::string explain(const receipt_finding& finding, const receipt& expected, const std::vector<source>& all,
    std::set<std::string>& known)
{
    if (known.contains(finding.tensor)) return {};
    const receipt_tensor* const wanted = expected.find(finding.tensor);
    std::string text = describe(finding);
    std::string places;
    for (const source& each : all) {
        const receipt_tensor* const found = each.sums.find(finding.tensor);
        if (found == nullptr || finding.problem == receipt_problem::other_step) continue;
        if (finding.problem == receipt_problem::gap || !may_be_wrong(wanted, *found, finding)) continue;
        if (all.size() > 1) places += (places.empty() ? ", in '" : ", '") + each.path + '\'';
        for (const tools::named_tensor& tensor : each.tensors) {
            if (wanted == nullptr || tensor.name != finding.tensor) continue;
            if (is_transposed(*wanted, *found, tensor.part, whole_box(wanted->shape))) {
                receipt_finding whole = finding;
                whole.box = whole_box(wanted->shape);
                if (finding.problem > receipt_problem::gap) whole.problem = receipt_problem::altered;
                text = describe(whole) + ": rows and columns are exchanged";
                known.insert(finding.tensor);
            } else if (finding.problem == receipt_problem::altered
                && is_transposed(*wanted, *found, tensor.part, finding.box)) {
                text += ": rows and columns are exchanged";
            }
        }
    }
    if (finding.problem == receipt_problem::other_type && finding.expected == name(element_type::float32)) {
        for (const element_type type : {element_type::bfloat16, element_type::float16})
            if (finding.other == name(type))
                places += std::string(": write the expected one with --write OUT.receipt --cast ") + name(type);
    }
    return text + places;
}

/// Says which files are of another step than the others, and gives all the expected one: a late rank does not hide what
/// else is wrong.
std::vector<std::string> compare_steps(std::uint64_t expected, std::vector<source>& all)
{
    std::vector<std::string> lines;
    std::uint64_t wanted = expected;
    std::string of_wanted = "expected is";
    for (source& each : all) {
        const std::uint64_t step = std::exchange(each.sums.step, expected);
        if (step == receipt::no_step || step == wanted) continue;
        if (wanted == receipt::no_step) {
            wanted = step;
            of_wanted = '\'' + each.path + "' is of";
        } else {
            lines.push_back('\'' + each.path + "' is of " + step_text(step) + ", " + of_wanted + ' ' + step_text(wanted));
        }
    }
    return lines;
}

int verify_files(const std::string& expected_path, const std::vector<std::string>& paths,
    const std::vector<std::string>& older_paths)
{
    sources files;
    const receipt expected = files.read(expected_path, {}).sums;
    for (const receipt_finding& gap : find_gaps(expected)) {
        throw bad_input(expected_path + ": " + describe(gap)
            + ". The expected file must be complete: merge the receipts of all ranks with --write");
    }
    std::vector<receipt> older;
    for (const std::string& path : older_paths)
        older.push_back(files.read(path, {.like = &expected, .is_older = true}).sums);

    std::vector<source> all;
    for (const std::string& path : paths) all.push_back(files.read(path, {.like = &expected, .step = expected.step}));
    std::vector<std::string> lines = compare_steps(expected.step, all);
    receipt found(expected.step);
    for (const source& each : all) merge(found, each);
    std::set<std::string> known;
    for (const receipt_finding& finding : verify(expected, found, older)) {
        std::string line = explain(finding, expected, all, known);
        if (!line.empty()) lines.push_back(std::move(line));
    }
    std::uint64_t parts = 0;
    for (const receipt_tensor& each : found.tensors()) parts += each.parts.size();
    const std::string size = counted(expected.tensors().count(), "tensor") + " of " + step_text(expected.step);
    std::string text;
    for (const std::string& line : lines) text += line + '\n';
    if (lines.empty()) text = "equal: " + size + ", found in " + counted(parts, "part") + '\n';
    else text += counted(lines.size(), "difference") + "; expected: " + size + '\n';
    std::fputs(collprobe::detail::printable(text, true).c_str(), stdout);
    return lines.empty() ? 0 : 1;
}

int write_receipt(const std::string& out, const std::vector<std::string>& paths, std::uint64_t step, int rank,
    const std::vector<element_cast>& casts)
{
    sources files;
    receipt merged;
    bool first = true;
    for (const std::string& path : paths) {
        std::error_code unknown;
        if (std::filesystem::equivalent(out, path, unknown)) throw bad_input("'" + out + "' is an input");
        source next = files.read(path, {.casts = casts, .step = step, .rank = rank});
        if (next.is_receipt && (rank >= 0 || !casts.empty()))
            throw bad_input(path + ": it is a receipt; --rank and --cast are for files with data");
        if (step != receipt::no_step && next.sums.step != step)
            throw bad_input(path + ": it is of " + step_text(next.sums.step) + ", not of " + step_text(step));
        if (first) merged = next.sums;
        else merge(merged, next);
        first = false;
    }
    report::replace_file(out, merged.text());
    const std::vector<receipt_finding> gaps = find_gaps(merged);
    std::string text = counted(merged.tensors().count(), "tensor") + " of " + step_text(merged.step) + '\n';
    for (const receipt_finding& each : gaps) text += describe(each) + '\n';
    std::fputs(collprobe::detail::printable(text, true).c_str(), stdout);
    return gaps.empty() ? 0 : 1;
}

/// "bfloat16" or "half:toward_zero": the stated rounding, and the other one, to recognise it.
std::vector<element_cast> casts_of(const std::vector<std::string>& words)
{
    std::vector<element_cast> casts;
    for (const std::string& word : words) {
        const std::size_t colon = std::min(word.find(':'), word.size());
        const std::string type = word.substr(0, colon);
        const std::string rounding = word.substr(colon);
        element_cast cast;
        if (type == name(element_type::float16)) cast.type = element_type::float16;
        else if (type != name(element_type::bfloat16)) throw bad_input("--cast: '" + type + "' is not bfloat16 or half");
        cast_rounding other = cast_rounding::toward_zero;
        if (rounding == ":toward_zero") std::swap(cast.rounding, other);
        else if (!rounding.empty() && rounding != ":nearest_even")
            throw bad_input("--cast: '" + rounding.substr(1) + "' is not nearest_even or toward_zero");
        casts.push_back(cast);
        casts.push_back({cast.type, other});
    }
    return casts;
}

} // namespace

int main(int argc, char** argv)
{
    std::vector<std::string> paths;
    std::vector<std::string> older;
    std::vector<std::string> casts;
    std::string out;
    std::uint64_t step = receipt::no_step;
    int rank = -1;
    support::command_line line("Holds receipts of weights against an expected one, whatever the number of ranks of either.\n"
                               "Files: receipts, *.safetensors, *.npy; those behind the first are parts of one model. The\n"
                               "tensor of a *.npy file has the file's name, without the folder and .npy.\n"
                               "A receipt finds errors; it does not resist an attacker.",
        "0 equal (or written);\n1 something differs (or lacks parts); 2 the input cannot be read.");
    line.positions("FILES", paths, "the expected file, and those that are found", true);
    line.collect("--older", "PATH", older, "files of earlier steps, to recognise weights that were not updated; not with --write");
    line.text("--write", "PATH", out, "writes a receipt of all FILES there: of data, or the receipts of ranks merged");
    line.value("--step", "N",
        [&step](const std::string& option, std::string_view word) {
            const bool right = word.size() <= 19 && word.find_first_not_of("0123456789") == word.npos;
            if (!right || word.empty()) {
                throw support::usage_error(option + ": '" + std::string(word) + "' is no number from 0 to 10^19 - 1");
            }
            step = std::stoull(std::string(word));
        },
        "with --write: the step of the data");
    line.value("--rank", "N",
        [&rank](const std::string& option, std::string_view word) {
            rank = support::number(option, word, 0, receipt::most_ranks - 1);
        },
        "with --write: the rank that holds the data");
    line.collect("--cast", "TYPE", casts,
        "with --write: with digests of float tensors as TYPE: bfloat16 or half, and :toward_zero\nfor that rounding in place of "
        "nearest_even");
    try {
        line.parse({argv + 1, argv + argc});
        for (const char* const of_write : {"--step", "--rank", "--cast"}) {
            if (line.given(of_write) && out.empty()) throw support::usage_error(std::string(of_write) + " needs --write");
        }
        if (!older.empty() && !out.empty()) throw support::usage_error("--older: not with --write");
        if (!out.empty()) return write_receipt(out, paths, step, rank, casts_of(casts));
        if (paths.size() < 2) throw bad_input("one file alone has nothing to be held against");
        return verify_files(paths[0], {paths.begin() + 1, paths.end()}, older);
    } catch (const error& problem) {
        return support::explain("collprobe_verify", bad_input(reason_of(problem)), 2);
    } catch (const std::exception& problem) {
        return support::explain("collprobe_verify", problem, 2);
    }
}
