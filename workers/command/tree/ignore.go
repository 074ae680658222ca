package tree

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// IgnoreFile is the name of the file at the top of a directory that says what is left out of it.
const IgnoreFile = ".spillwayignore"

// usual is what is left out of every directory of code: version control, environments and caches that belong to one
// machine. An IgnoreFile can take a line back with "!".
const usual = `.git
.hg
.svn
__pycache__/
.venv/
venv/
node_modules/
.mypy_cache/
.pytest_cache/
.ipynb_checkpoints/
*.pyc
`

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
}

// ReadIgnore returns what to leave out of the directory dir of code: version control, Python and Node environments and
// caches, and what its IgnoreFile says where it has one. A line that cannot be understood is an error that names it.
func ReadIgnore(dir string) (*Ignore, error) {
	ignore, err := ParseIgnore(strings.NewReader(usual))
	if err != nil {
		return nil, err
	}
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

// Match reports whether the file with this name, relative to the top and with slashes, is left out. What is in a
// directory that is left out is not asked for.
func (i *Ignore) Match(name string, dir bool) bool {
	if i == nil {
		return false
	}
	segments := strings.Split(name, "/")
	for _, r := range slices.Backward(i.rules) {
		if (dir || !r.dirOnly) && matches(r.segments, segments) {
			return !r.keep
		}
	}
	return false
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
