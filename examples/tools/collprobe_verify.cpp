// SPDX-FileCopyrightText: The collprobe authors
// SPDX-License-Identifier: Apache-2.0

// Does another program, topology or time hold the same weights? Receipts (replica/receipt.hpp), safetensors and NumPy
// files against an expected one: missing, stale and altered tensors, and the shard. Or writes a receipt of them.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include <collprobe/replica/receipt.hpp>
#include <collprobe/report/file.hpp>

#include "tensor_files.hpp"

namespace {

using namespace collprobe;

struct bad_input : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct source {
    std::string path;
    receipt sums;
    std::vector<tools::named_tensor> tensors; ///< of a file with data
};

/// Files, which stay in memory as long as the parts that point to them.
class sources {
public:
    /// `like`: null, or a receipt by whose parts tensors are cut, so that a difference is named by its part.
    source read(const std::string& path, const receipt* like, const std::vector<element_cast>& casts,
        std::uint64_t step, int rank)
    {
        try {
            const std::string_view text = files_.emplace_back(path).text();
            source made{path, receipt(step, rank), {}};
            const std::string suffix = std::filesystem::path(path).extension().string();
            if (suffix == ".safetensors") made.tensors = tools::read_safetensors(text);
            else if (suffix == ".npy") made.tensors = {tools::read_npy(text, std::filesystem::path(path).stem().string())};
            else made.sums = receipt::read(text);
            for (const tools::named_tensor& each : made.tensors) add(made.sums, each, like, casts);
            return made;
        } catch (const tools::bad_tensor_file& problem) {
            const std::string reason = problem.what();
            throw bad_input(reason.find('\'' + path + '\'') == std::string::npos ? path + ": " + reason : reason);
        } catch (const error& problem) {
            throw bad_input(path + ": " + problem.what());
        }
    }

private:
    static void add(receipt& to, const tools::named_tensor& tensor, const receipt* like, std::vector<element_cast> casts)
    {
        if (tensor.type != name(element_type::float32)) casts.clear();
        const receipt_tensor* const wanted = like == nullptr ? nullptr : like->find(tensor.name);
        if (wanted == nullptr || wanted->shape != tensor.part.shape || wanted->parts.empty()) {
            to.add(tensor.name, tensor.part, casts, tensor.type);
            return;
        }
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
        throw bad_input(next.path + ": " + problem.what());
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

/// Whether data that differs is what is expected with rows and columns exchanged.
bool is_transposed(const receipt_tensor& expected, tensor_part found, const receipt_finding& finding)
{
    const int last = expected.shape.dimensions - 1;
    if (finding.problem == receipt_problem::other_shape) {
        if (last < 1 || found.shape.dimensions != expected.shape.dimensions) return false;
        std::swap(found.shape.size[last], found.shape.size[last - 1]);
        std::swap(found.stride.size[last], found.stride.size[last - 1]);
        if (found.shape != expected.shape) return false;
        found.box.extent = found.shape;
        return digest_part(found).finish() == expected.whole().finish();
    }
    if (finding.problem != receipt_problem::altered || last < 1) return false;
    if (finding.box.extent.size[last] != finding.box.extent.size[last - 1]) return false;
    for (const receipt_part& part : expected.parts) {
        if (part.box == finding.box)
            return digest_part(found.within(part.box).transposed()).finish() == part.state.finish();
    }
    return false;
}

int verify_files(const std::string& expected_path, const std::vector<std::string>& paths,
    const std::vector<std::string>& older_paths)
{
    sources files;
    const receipt expected = files.read(expected_path, nullptr, {}, receipt::no_step, -1).sums;
    std::vector<receipt> older;
    for (const std::string& path : older_paths)
        older.push_back(files.read(path, &expected, {}, receipt::no_step, -1).sums);

    receipt found(expected.step);
    std::vector<source> all;
    std::uint64_t differences = 0;
    std::string text;
    const auto tell = [&](const std::string& line) {
        ++differences;
        text += line + '\n';
    };
    for (const std::string& path : paths) {
        all.push_back(files.read(path, &expected, {}, expected.step, -1));
        receipt& sums = all.back().sums;
        if (sums.step != expected.step) {
            if (sums.step != receipt::no_step && expected.step != receipt::no_step)
                tell('\'' + path + "' is of " + step_text(sums.step) + ", expected is " + step_text(expected.step));
            sums.step = expected.step; // one late rank does not hide what else is wrong
        }
        merge(found, all.back());
    }
    for (const receipt_finding& finding : verify(expected, found, older)) {
        std::string line = describe(finding);
        for (const source& each : all) {
            for (const tools::named_tensor& tensor : each.tensors) {
                if (tensor.name != finding.tensor) continue;
                if (all.size() > 1) line += ", in '" + each.path + '\'';
                const receipt_tensor* const wanted = expected.find(tensor.name);
                if (wanted != nullptr && wanted->type == tensor.type && is_transposed(*wanted, tensor.part, finding))
                    line += ": rows and columns are exchanged";
            }
        }
        tell(line);
    }
    std::uint64_t parts = 0;
    for (const receipt_tensor& each : found.tensors()) parts += each.parts.size();
    const std::string size = counted(expected.tensors().count(), "tensor") + " of " + step_text(expected.step);
    if (differences == 0) text = "equal: " + size + ", found in " + counted(parts, "part") + '\n';
    else text += counted(differences, "difference") + "; expected: " + size + '\n';
    std::fputs(text.c_str(), stdout);
    return differences == 0 ? 0 : 1;
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
        source next = files.read(path, nullptr, casts, step, rank);
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
    std::fputs(text.c_str(), stdout);
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
    CLI::App app("Holds receipts of weights against an expected one, whatever the number of ranks of either. Files: receipts, "
                 "*.safetensors, *.npy; those behind the first are parts of one model.");
    app.add_option("FILES", paths, "the expected file, and those that are found")->required();
    app.add_option("--older", older, "files of earlier steps, to recognise weights that were not updated")
        ->type_name("PATH")
        ->allow_extra_args(false);
    CLI::Option* const write = app.add_option(
        "--write", out, "writes a receipt of all FILES there: of data, or the receipts of ranks merged")->type_name("PATH");
    app.add_option("--step", step, "the step of the data")->needs(write);
    app.add_option("--rank", rank, "the rank that holds the data")->needs(write)->check(CLI::NonNegativeNumber);
    app.add_option("--cast", casts, "with digests of float tensors as TYPE: bfloat16 or half, and :toward_zero for that "
                                    "rounding in place of nearest_even")
        ->type_name("TYPE")
        ->allow_extra_args(false)
        ->needs(write);
    app.footer("A receipt finds errors; it does not resist an attacker. Exit status: 0 equal (or written); 1 something "
               "differs (or lacks parts); 2 the input cannot be read.");
    try {
        app.parse(argc, argv);
        if (!out.empty()) return write_receipt(out, paths, step, rank, casts_of(casts));
        if (paths.size() < 2) throw bad_input("one file alone has nothing to be held against");
        return verify_files(paths[0], {paths.begin() + 1, paths.end()}, older);
    } catch (const CLI::CallForHelp& asked) {
        return app.exit(asked);
    } catch (const CLI::ParseError& problem) {
        app.exit(problem);
        return 2;
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "collprobe_verify: %s\n", problem.what());
        return 2;
    }
}
