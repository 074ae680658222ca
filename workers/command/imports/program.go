package imports

import (
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Most is how many modules are named of a program, and MostName how many bytes the name of one has at most. Programs
// import a handful that are heavy; those beyond are left out in the order of the alphabet.
const (
	Most     = 32
	MostName = 64
)

// Program is what is known of a command from its text.
type Program struct {
	// Name is what mainly runs: "python3" of `sh -c "python3 fit.py"`. It is empty where there is no command.
	Name string
	// Imports are the top-level modules that a program in Python imports, those of the standard library and its own files
	// left out: sorted, at most Most. It is nil where nothing is known of them, and empty where there are none.
	Imports []string
}

// Of reads the command with these arguments that starts in a directory of files ("." or a path with slashes). What it
// reads is bounded: see maxFiles. Modules that are imported by a name that is only known when the program runs
// (importlib) are not seen.
func Of(files fs.FS, directory string, arguments []string) Program {
	if len(arguments) == 0 || arguments[0] == "" {
		return Program{}
	}
	if script, ok := scriptOf(arguments); ok {
		return ofScript(files, directory, path.Base(arguments[0]), script)
	}
	return ofCommand(files, directory, arguments)
}

// ofCommand reads a command that is no script of a shell.
func ofCommand(files fs.FS, directory string, arguments []string) Program {
	p := Program{Name: path.Base(arguments[0])}
	s := newScan(files, directory)
	switch {
	case isPython(p.Name):
		s.interpreter(arguments[1:])
	default: // a launcher, or a script that names its interpreter
		at := slices.IndexFunc(arguments, func(argument string) bool {
			return strings.HasSuffix(argument, ".py") && s.has(argument)
		})
		if at < 0 {
			return p
		}
		s.file(arguments[at])
	}
	p.Imports = s.found()
	return p
}

// isPython reports whether a program is an interpreter of Python: "python", "python3", "python3.12", "pypy3".
func isPython(name string) bool {
	for _, interpreter := range []string{"python", "pypy"} {
		if version, ok := strings.CutPrefix(name, interpreter); ok && strings.Trim(version, "0123456789.") == "" {
			return true
		}
	}
	return false
}

// isShell reports whether a program is a shell.
func isShell(name string) bool {
	return slices.Contains([]string{"sh", "bash", "dash", "ash", "zsh", "ksh"}, name)
}

// scriptOf is the script of `sh -c SCRIPT`.
func scriptOf(arguments []string) (script string, ok bool) {
	if !isShell(path.Base(arguments[0])) {
		return "", false
	}
	for i, argument := range arguments[1:] {
		if !strings.HasPrefix(argument, "-") {
			return "", false // a file, of which nothing is known
		}
		if !strings.HasPrefix(argument, "--") && strings.HasSuffix(argument, "c") && i+2 < len(arguments) {
			return arguments[i+2], true
		}
	}
	return "", false
}

// ofScript reads a script of a shell: it is what starts Python in it, or its first command that is not small, or
// the shell.
func ofScript(files fs.FS, directory, shell, script string) Program {
	commands := commandsOf(script)
	python := Program{}
	for _, command := range commands {
		if command.words[0] == "cd" {
			directory = path.Join(directory, strings.Join(command.words[1:], ""))
		}
		one := ofCommand(files, directory, command.words)
		if one.Imports == nil && !isPython(one.Name) {
			continue
		}
		switch {
		case python.Name == "":
			python = one
		case python.Imports == nil || one.Imports == nil: // nobody knows what one of them imports
			python.Imports = nil
		default:
			python.Imports = bounded(append(python.Imports, one.Imports...))
		}
	}
	if python.Name != "" {
		return python
	}
	for _, command := range commands {
		if name := path.Base(command.words[0]); !slices.Contains(small, name) && isName(name) {
			return Program{Name: name}
		}
	}
	return Program{Name: shell}
}

// small are the commands of which a script may have any number and is still what its shell is: those that the shell
// runs itself, and those that take about as much.
var small = strings.Fields("[ : . cd echo eval exit export printf pwd read return set shift source test trap true " +
	"false ulimit umask unset wait for case esac fi done basename cat chmod cp cut date dirname env expr find grep head " +
	"hostname id ln ls mkdir mktemp mv nproc readlink realpath rm rmdir sed seq sleep stat tail tee touch tr uname uniq " +
	"wc xargs")

// isName reports whether a word is one by which a program may be called, and nothing that is known in a run only.
func isName(word string) bool { return word != "" && !strings.ContainsAny(word, "$<>{}[]*?=!") }

// simple is one command of a script.
type simple struct{ words []string }

// wrappers start the command that follows them; keywords stand before one.
var (
	wrappers = strings.Fields("exec env nice nohup time command ionice setsid stdbuf")
	keywords = strings.Fields("! if then elif else while until do { (")
)

// commandsOf splits a script into its commands. It is no parser: quotes, comments and what separates commands are
// followed; what it takes for a command and is none is one that nobody knows.
func commandsOf(script string) (commands []simple) {
	var words []string
	var word strings.Builder
	begun, quote := false, rune(0)
	endWord := func() {
		if begun {
			words = append(words, word.String())
		}
		begun = false
		word.Reset()
	}
	endCommand := func() {
		endWord()
		if words = unwrapped(words); len(words) > 0 {
			commands = append(commands, simple{words})
		}
		words = nil
	}
	runes := []rune(script)
	for i := 0; i < len(runes); i++ {
		switch r := runes[i]; {
		case quote != 0 && r == quote:
			quote = 0
		case r == '\\' && quote != '\'' && i+1 < len(runes):
			if i++; runes[i] != '\n' {
				begun = true
				word.WriteRune(runes[i])
			}
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == '#' && !begun:
			for i+1 < len(runes) && runes[i+1] != '\n' {
				i++
			}
		case strings.ContainsRune("\n;&|()`", r):
			endCommand()
		case r == ' ' || r == '\t':
			endWord()
		default:
			begun = true
			word.WriteRune(r)
		}
	}
	endCommand()
	return commands
}

// unwrapped is a command without what only stands before it.
func unwrapped(words []string) []string {
	wrapped := false
	for len(words) > 0 {
		name, _, assigns := strings.Cut(words[0], "=")
		switch {
		case slices.Contains(keywords, words[0]), assigns && !strings.ContainsAny(name, "/-"):
		case slices.Contains(wrappers, words[0]):
			wrapped = true
		case wrapped && (strings.HasPrefix(words[0], "-") || strings.Trim(words[0], "0123456789") == ""):
		default:
			return words
		}
		words = words[1:]
	}
	return nil
}
