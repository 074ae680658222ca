package imports

import (
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/workers/python"
)

// How much of a program is read: what imports something heavy does so near its beginning, or in one of the files beside
// it.
const (
	maxFiles = 64
	maxBytes = 256 << 10
)

// scan collects what a program in Python imports.
type scan struct {
	files     fs.FS
	directory string // where the program starts
	beside    string // where its modules are looked for: beside its file
	here      string // where the file is that is read now, to which relative imports refer
	names     map[string]bool
	read      map[string]bool
	known     bool // some of the program was read, or named
	cut       bool // not all of it was
}

func newScan(files fs.FS, directory string) *scan {
	directory = path.Clean(directory)
	return &scan{files: files, directory: directory, beside: directory, names: map[string]bool{}, read: map[string]bool{}}
}

// found are the modules; nil where nothing is known.
func (s *scan) found() []string {
	if !s.known || s.cut && len(s.names) == 0 {
		return nil
	}
	names := make([]string, 0, len(s.names))
	for name := range s.names {
		names = append(names, name)
	}
	return bounded(names)
}

// bounded sorts names, and leaves out those that are there twice and those beyond the bounds.
func bounded(names []string) []string {
	names = slices.DeleteFunc(names, func(name string) bool { return len(name) > MostName })
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), Most)]
}

// interpreter reads what an interpreter of Python is told to run.
func (s *scan) interpreter(arguments []string) {
	for len(arguments) > 0 {
		argument := arguments[0]
		option, inside := argument, ""
		if len(argument) > 2 && argument[0] == '-' && argument[1] != '-' {
			option, inside = argument[:2], argument[2:]
		}
		value := inside
		if inside == "" && len(arguments) > 1 {
			value = arguments[1]
		}
		switch {
		case option == "-c":
			s.known = true
			s.text(value)
			return
		case option == "-m":
			s.known = value != ""
			s.module(value)
			return
		case !strings.HasPrefix(argument, "-"):
			s.file(argument)
			return
		case (option == "-X" || option == "-W") && inside == "": // they take a value
			arguments = arguments[min(2, len(arguments)):]
		default:
			arguments = arguments[1:]
		}
	}
}

// has reports whether a file is among those of the program.
func (s *scan) has(name string) bool {
	info, err := fs.Stat(s.files, s.path(name))
	return err == nil && info.Mode().IsRegular()
}

// path is a name that the program is given, below the files.
func (s *scan) path(name string) string {
	if path.IsAbs(name) {
		return "" // it is the host's, of which nothing is known here
	}
	return path.Join(s.directory, name)
}

// file reads a program and what it imports of the files beside it.
func (s *scan) file(name string) {
	if !s.has(name) {
		return
	}
	s.known = true
	s.beside = path.Dir(s.path(name))
	s.open(s.path(name))
}

// open reads one file, once.
func (s *scan) open(name string) {
	if s.read[name] {
		return
	}
	if len(s.read) == maxFiles {
		s.cut = true
		return
	}
	s.read[name] = true
	file, err := s.files.Open(name)
	if err != nil {
		s.cut = true
		return
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if s.cut = s.cut || err != nil || len(text) > maxBytes; err == nil {
		before := s.here
		s.here = path.Dir(name)
		s.text(string(text[:min(len(text), maxBytes)]))
		s.here = before
	}
}

// module notes a module by its full name, and reads it where it is a file of the program.
func (s *scan) module(name string) {
	top, rest, _ := strings.Cut(name, ".")
	if top == "" || strings.Trim(strings.ToLower(top), "abcdefghijklmnopqrstuvwxyz_0123456789") != "" {
		return // no name, or one in letters that no module on PyPI has
	}
	for _, at := range []string{s.beside, s.directory} {
		place := path.Join(at, top)
		if _, err := fs.Stat(s.files, place+".py"); err == nil {
			s.open(place + ".py")
			return
		}
		info, err := fs.Stat(s.files, place)
		if err != nil || !info.IsDir() {
			continue
		}
		s.openPackage(place, rest)
		return
	}
	if !standard[top] && top != python.Module { // which each attempt has
		s.names[top] = true
	}
}

// openPackage reads a package of the program, and the module of it that is named.
func (s *scan) openPackage(place, rest string) {
	for _, part := range append([]string{""}, strings.Split(rest, ".")...) {
		place = path.Join(place, part)
		for _, file := range []string{place + ".py", path.Join(place, "__init__.py"), path.Join(place, "__main__.py")} {
			if info, err := fs.Stat(s.files, file); err == nil && info.Mode().IsRegular() {
				s.open(file)
			}
		}
	}
}

// text notes what a text in Python imports, wherever the statement stands: one in a function is there because the
// function is called.
func (s *scan) text(text string) {
	for _, statement := range statements(text) {
		words := strings.Fields(statement)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "import":
			for name := range strings.SplitSeq(strings.Join(words[1:], " "), ",") {
				if fields := strings.Fields(name); len(fields) > 0 {
					s.module(fields[0])
				}
			}
		case "from":
			s.from(words[1:])
		}
	}
}

// from notes `from a.b import c, d`: c may be a name of the module or a module of the package.
func (s *scan) from(words []string) {
	at := slices.Index(words, "import")
	module := strings.Join(words[:max(at, 0)], "")
	if at < 1 || strings.HasPrefix(module, "..") {
		return // above what is beside the program
	}
	prefix, places := module+".", []string{s.beside, s.directory}
	if relative, ok := strings.CutPrefix(module, "."); ok {
		prefix, places = strings.TrimPrefix(relative+".", "."), []string{s.here}
		s.local(relative, places)
	} else {
		s.module(module)
	}
	for name := range strings.SplitSeq(strings.Trim(strings.Join(words[at+1:], " "), "()"), ",") {
		if fields := strings.Fields(name); len(fields) > 0 {
			s.local(prefix+fields[0], places)
		}
	}
}

// local reads a module where it is a file of the program in one of these places, and notes nothing where it is none.
func (s *scan) local(name string, places []string) {
	if name == "" {
		return
	}
	for _, at := range places {
		place := path.Join(at, strings.ReplaceAll(name, ".", "/"))
		for _, file := range []string{place + ".py", path.Join(place, "__init__.py")} {
			if info, err := fs.Stat(s.files, file); err == nil && info.Mode().IsRegular() {
				s.open(file)
				return
			}
		}
	}
}

// statements splits a text in Python into its statements, without comments and with texts left empty: lines, joined
// where a bracket or a backslash says that they go on, and divided at semicolons and after a colon.
func statements(text string) (all []string) {
	var now strings.Builder
	depth := 0
	end := func() {
		if statement := strings.TrimSpace(now.String()); statement != "" {
			all = append(all, statement)
		}
		now.Reset()
	}
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '#':
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case '\'', '"':
			i = afterText(text, i)
			now.WriteString(`""`)
		case '\\':
			i++ // with the end of the line, or what a broken text has
			now.WriteByte(' ')
		case '(', '[', '{':
			depth++
			now.WriteByte(c)
		case ')', ']', '}':
			depth = max(0, depth-1)
			now.WriteByte(c)
		case '\n', ';', ':':
			if depth > 0 {
				now.WriteByte(' ')
				continue
			}
			end()
		default:
			now.WriteByte(c)
		}
	}
	end()
	return all
}

// afterText is the place of the last quote of the text that begins at i.
func afterText(text string, i int) int {
	quote := text[i : i+1]
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(text[i:], triple) {
		quote = triple
	}
	for i += len(quote); i < len(text); i++ {
		switch {
		case text[i] == '\\':
			i++
		case strings.HasPrefix(text[i:], quote):
			return i + len(quote) - 1
		case len(quote) == 1 && text[i] == '\n':
			return i - 1 // it is not closed: what follows is not a part of it
		}
	}
	return len(text)
}
