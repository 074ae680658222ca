package wire

import (
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// FunctionDisk is what a function has for files where nothing else is paid for: all that a command brings along, makes
// and leaves lies there. FunctionTime is the longest that a function may run.
// Source: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
const (
	FunctionDisk = 512 * quantity.MiB
	FunctionTime = 15 * time.Minute
)

// mostNamed is how many modules a reason names.
const mostNamed = 3

// PoolOnly returns why no function can run the command, whatever it is given: empty when one may. A function has the
// language that its command is written in, and nothing that this command would have to be installed for.
func (c Command) PoolOnly() string {
	switch {
	case c.InPlace != "":
		return "it runs in place, in a directory of this host"
	case c.Hosts > 1:
		return "it runs on several hosts at once"
	case c.Image != "":
		return "it runs in the container image " + c.Image
	case c.Requirements.Digest != "":
		return "it has Python requirements, which each new function would install again"
	case len(c.Imports) > 0:
		named := strings.Join(c.Imports[:min(len(c.Imports), mostNamed)], ", ")
		if len(c.Imports) > mostNamed {
			named += " and others"
		}
		return "it imports " + named + ", which functions do not have"
	}
	if found := c.hostPath(); found != "" {
		return "it names " + found + ", a path of this host"
	}
	return ""
}

// everywhere are the paths that functions have, too: what begins with one of those that end with a slash, and the rest
// as they are.
var everywhere = []string{"/dev/", "/proc/", "/tmp/", "/tmp", "/bin/sh", "/bin/bash", "/usr/bin/env", "/bin/cat"}

// hostPath is an absolute path that the command is given and that a function has nothing at; empty when there is none.
// Scripts for a shell are looked through, too, and the PATH is not: it is sent with every command, and a function looks
// through its own first. What a program has in its own text is not seen.
func (c Command) hostPath() string {
	texts := slices.Clone(c.Arguments)
	for _, name := range slices.Sorted(maps.Keys(c.Environment)) {
		if name != "PATH" {
			texts = append(texts, c.Environment[name])
		}
	}
	for _, text := range texts {
		words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n\"'`=<>|&;:,()", r) })
		for _, word := range words {
			if isHostPath(word) {
				return word
			}
		}
	}
	return ""
}

// isHostPath reports whether a word is a path below the root, with more than one letter, that functions do not have.
func isHostPath(word string) bool {
	if !path.IsAbs(word) || len(word) < 3 || strings.HasPrefix(word, "//") || strings.ContainsAny(word, "*?[]{}$\\") {
		return false
	}
	return !slices.ContainsFunc(everywhere, func(known string) bool {
		return word == known || strings.HasSuffix(known, "/") && strings.HasPrefix(word, known)
	})
}

// PoolOnlyFor returns why no function can run a task of the stage with this input: empty when one may. That of a stage
// which its author keeps off functions is not told.
func (s Stage) PoolOnlyFor(input json.RawMessage) string {
	var c Command
	switch {
	case s.PoolOnly || !s.Command:
		return ""
	case s.Declared.GPU > 0:
		return "it needs a GPU, which functions do not have"
	case s.Timeout > FunctionTime:
		return "it may take " + s.Timeout.String() + ", and a function " + FunctionTime.String()
	case len(input) == 0 || json.Unmarshal(input, &c) != nil:
		return "" // who runs it says what is wrong
	}
	return c.PoolOnly()
}

// Room is what a function's disk must hold of the command before it has written anything: its files, the checkpoint
// that it goes on from, and its code twice, as it is kept unpacked for the next attempt.
func (c Command) Room(resume activities.Ref) quantity.Bytes {
	room := 2*bytesOf(c.Code) + bytesOf(resume)
	for _, file := range c.Files {
		room += bytesOf(file.Artifact)
	}
	return room
}

// bytesOf is the size of an artifact, bounded so that the sum of many cannot overflow.
func bytesOf(ref activities.Ref) quantity.Bytes {
	const most = 1 << 40
	return quantity.Bytes(min(max(ref.Bytes, 0), most))
}

// Runs is what mainly runs: "python3" of `sh -c "python3 fit.py"`.
func (c Command) Runs() string {
	if c.Program != "" || len(c.Arguments) == 0 {
		return c.Program
	}
	return path.Base(c.Arguments[0])
}
