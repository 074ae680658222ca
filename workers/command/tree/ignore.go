package tree

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// IgnoreFile is the name of the file at the top of a directory that says what is left out of it.
const IgnoreFile = ".spillwayignore"

// What is left out of every directory of code: version control and caches, which no program needs, and environments
// of Python and Node, which belong to one machine. An IgnoreFile can take a line back with "!".
const (
	usual = `.git
.hg
.svn
__pycache__/
.mypy_cache/
.pytest_cache/
.ipynb_checkpoints/
*.pyc
`
	environments = `.venv/
venv/
node_modules/
`
)

// Ignore says which files are left out. A nil Ignore leaves out none. It may be used concurrently.
//
// The rules are lines as in a .gitignore file:
//
//	# comment        a line to skip, as are empty lines; "\#" and "\!" begin a name with these characters
//	name             files and directories of this name at any depth
//	/name, a/name    only there: a slash at the start or in the middle counts from the top
//	name/            only directories
//	*.pyc            "*" is any number of characters but no slash, "?" is one, "[a-z]" one of these, "[!a-z]" none of
//	                 these
//	**/logs, a/**/b  "**" is any number of directories; "a/**" is everything below a
//	!keep.pyc        takes back what an earlier line left out, but not what is in a directory that was left out
//
// The last line that matches decides. There is one file of rules, at the top; those in other directories are not read.
type Ignore struct {
	rules []rule
}

// rule is one line.
type rule struct {
	segments []string // of the pattern; "**" stands for any number of directories
	dirOnly  bool
	keep     bool
	// environment says that the line is one of environments, and no IgnoreFile's.
	environment bool
}

// ReadIgnore returns what to leave out of the directory dir of code: version control, Python and Node environments and
// caches, and what its IgnoreFile says where it has one. A line that cannot be understood is an error that names it.
func ReadIgnore(dir string) (*Ignore, error) {
	ignore, err := ParseIgnore(strings.NewReader(environments))
	if err != nil {
		return nil, err
	}
	for i := range ignore.rules {
		ignore.rules[i].environment = true
	}
	caches, err := ParseIgnore(strings.NewReader(usual))
	if err != nil {
		return nil, err
	}
	ignore.rules = append(ignore.rules, caches.rules...)
	name := filepath.Join(dir, IgnoreFile)
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return ignore, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what to ignore: %w", err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	own, err := ParseIgnore(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	ignore.rules = append(ignore.rules, own.rules...)
	return ignore, nil
}

// ParseIgnore reads rules, one a line. An error names the line's number.
func ParseIgnore(r io.Reader) (*Ignore, error) {
	var ignore Ignore
	lines := bufio.NewScanner(r)
	for number := 1; lines.Scan(); number++ {
		parsed, found, err := parseRule(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if found {
			ignore.rules = append(ignore.rules, parsed)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read rules: %w", err)
	}
	return &ignore, nil
}

// parseRule reads one line; found is false for a comment.
func parseRule(line string) (parsed rule, found bool, err error) {
	pattern := strings.TrimRight(line, " \t\r")
	if pattern == "" || pattern[0] == '#' {
		return rule{}, false, nil
	}
	if pattern[0] == '!' {
		parsed.keep, pattern = true, pattern[1:]
	}
	pattern, parsed.dirOnly = strings.CutSuffix(pattern, "/")
	anchored := strings.Contains(pattern, "/")
	pattern = strings.TrimPrefix(pattern, "/")
	if pattern == "" {
		return rule{}, false, fmt.Errorf("%q names nothing", line)
	}
	parsed.segments = strings.Split(strings.ReplaceAll(pattern, "[!", "[^"), "/")
	if !anchored {
		parsed.segments = append([]string{"**"}, parsed.segments...)
	}
	parsed.segments = slices.CompactFunc(parsed.segments, func(a, b string) bool { return a == "**" && b == "**" })
	if n := len(parsed.segments); parsed.segments[n-1] == "**" { // everything below, but not the directory itself
		parsed.segments = append(parsed.segments, "*")
	}
	for _, segment := range parsed.segments {
		if _, err := path.Match(segment, ""); err != nil {
			return rule{}, false, fmt.Errorf("%q: %w", line, err)
		}
	}
	return parsed, true, nil
}

// literal takes from a name what a pattern would read as more than that.
var literal = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)

// Without returns the same rules and that the file or directory of this name, relative to the top and with slashes, is
// left out whatever they say.
func (i *Ignore) Without(name string) *Ignore {
	added := &Ignore{rules: []rule{{segments: strings.Split(literal.Replace(name), "/")}}}
	if i != nil {
		added.rules = slices.Concat(i.rules, added.rules)
	}
	return added
}

// Match reports whether the file with this name, relative to the top and with slashes, is left out. What is in a
// directory that is left out is not asked for.
func (i *Ignore) Match(name string, dir bool) bool {
	r, found := i.deciding(name, dir)
	return found && !r.keep
}

// deciding returns the last line that matches.
func (i *Ignore) deciding(name string, dir bool) (r rule, found bool) {
	if i == nil {
		return rule{}, false
	}
	segments := strings.Split(name, "/")
	for _, r := range slices.Backward(i.rules) {
		if (dir || !r.dirOnly) && matches(r.segments, segments) {
			return r, true
		}
	}
	return rule{}, false
}

// Environments returns the environments of Python and Node in the directory dir that ignore leaves out without being
// told to, by their paths: a program that needs one misses it. What cannot be read of them is not counted.
func Environments(ctx context.Context, dir string, ignore *Ignore) ([]Share, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("look for environments: %w", err)
	}
	defer root.Close() //nolint:errcheck // it was only read
	var found []Share
	err = fs.WalkDir(FS(root), ".", func(name string, d fs.DirEntry, err error) error {
		switch r, decided := ignore.deciding(name, err == nil && d.IsDir()); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return nil //nolint:nilerr // packing tells
		case name == "." || !decided || r.keep:
			return nil
		case r.environment:
			found = append(found, Share{Path: name + "/", Bytes: held(ctx, root, name)})
			return fs.SkipDir
		case d.IsDir():
			return fs.SkipDir
		default:
			return nil
		}
	})
	return found, err
}

// held is what the files in a directory take together, as far as they can be read.
func held(ctx context.Context, root *os.Root, dir string) (total quantity.Bytes) {
	_ = fs.WalkDir(FS(root), dir, func(_ string, d fs.DirEntry, err error) error { // what is left out is only named
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // it is not counted
		}
		if info, err := d.Info(); err == nil {
			total += quantity.Bytes(info.Size())
		}
		return nil
	})
	return total
}

// matches compares names with patterns one by one; after a "**" it tries the next place for the rest until one fits.
// Only the last "**" need be tried again: an earlier one that takes more leaves less for it.
func matches(patterns, names []string) bool {
	p, n := 0, 0
	star, from := -1, 0
	for n < len(names) {
		switch {
		case p < len(patterns) && patterns[p] == "**":
			star, from = p, n
			p++
		case p < len(patterns) && matchesOne(patterns[p], names[n]):
			p++
			n++
		case star >= 0:
			from++
			p, n = star+1, from
		default:
			return false
		}
	}
	return p == len(patterns)
}

// matchesOne compares one name; the pattern was found good when it was read.
func matchesOne(pattern, name string) bool {
	matched, err := path.Match(pattern, name)
	return matched && err == nil
}
