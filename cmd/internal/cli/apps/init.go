package apps

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command {
	return []*cobra.Command{
		initCommand(t),
	}
}

//go:embed template
var templates embed.FS

// tidyLimit bounds `go mod tidy`: the first one may fetch some hundred modules.
const tidyLimit = 10 * time.Minute

func initCommand(t *tool.Tool) *cobra.Command {
	var module string
	var noTidy, asJSON bool
	command := &cobra.Command{
		Use:   "init DIR [FLAGS]",
		Short: "Begin an app: a module with a pipeline of two stages and its tests",
		Long: `Write a Go module that is a whole Spillway app: a pipeline of two stages, its tests and a README.
DIR is made when it is not there and must be empty. When this binary runs from its source tree, the
module uses that tree through a replace line in its go.mod. At last ` + "`go mod tidy`" + ` completes go.mod
and go.sum, which may fetch modules.`,
		Example: `  spillway init myapp
  spillway init ./apps/forecast --module example.com/forecast`,
		Args: flag.Positional("a directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return begin(cmd.Context(), t, args[0], module, !noTidy, asJSON)
		},
	}
	command.Flags().StringVar(&module, "module", "", "`PATH` of the module (default the directory's name)")
	command.Flags().BoolVar(&asJSON, "json", false, "print the app, its module and its directory as JSON")
	command.Flags().BoolVar(&noTidy, "no-tidy", false, "leave go mod tidy to you")
	return command
}

// begun is the JSON of `init`.
type begun struct {
	App    string `json:"app"`
	Module string `json:"module"`
	Dir    string `json:"dir"`
	// Tidy is false when go.mod and go.sum are not complete yet.
	Tidy bool `json:"tidy"`
}

// scaffold is what the templates are filled with.
type scaffold struct {
	// Module is the module's path and App the name of the app and its pipeline.
	Module, App string
	// Go is the language version, Version that of Spillway, Replace the source tree or empty.
	Go, Version, Replace string
}

func begin(ctx context.Context, t *tool.Tool, dir, module string, complete, asJSON bool) error {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("find %s: %w", dir, err)
	}
	filled, err := newScaffold(t, absolute, module)
	if err != nil {
		return err
	}
	files, err := filled.files()
	if err != nil {
		return err
	}
	if err := writeApp(absolute, files); err != nil {
		return err
	}
	if !asJSON {
		t.Say("app %s is in %s\n", filled.App, dir)
	}
	if !asJSON && filled.Replace != "" {
		t.Say("its go.mod uses the source tree %s\n", filled.Replace)
	}
	next := "go mod tidy && "
	if complete {
		switch err := tidy(ctx, absolute); {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			t.Complain("note: go.sum is not complete yet: %v\n", err)
		default:
			next = ""
		}
	}
	if asJSON {
		return t.WriteJSON(begun{App: filled.App, Module: filled.Module, Dir: absolute, Tidy: next == ""})
	}
	t.Say("next: cd %s && %sspillway run %s --app .\n", flag.ShellWords(dir), next, filled.App)
	return nil
}

var (
	releasedVersion = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)
	modulePathRule  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._~-]*(/[A-Za-z0-9][A-Za-z0-9._~-]*)*$`)
)

// newScaffold decides the names and versions of a new app.
func newScaffold(t *tool.Tool, dir, module string) (scaffold, error) {
	base := filepath.Base(dir)
	if module == "" {
		module = strings.ToLower(strings.ReplaceAll(base, " ", "-"))
	}
	if !modulePathRule.MatchString(module) {
		return scaffold{}, &fault.UsageError{
			Problem: fmt.Sprintf("%q is not the path of a module", module),
			Hint:    "name one with --module, such as example.com/forecast",
		}
	}
	name := flag.PlainName(base)
	if name == "" || len(name) > flag.NameLimit {
		return scaffold{}, &fault.UsageError{
			Problem: fmt.Sprintf("the directory's name %q makes no name for an app", base),
			Hint:    fmt.Sprintf("use letters, digits and dashes, at most %d", flag.NameLimit),
		}
	}
	filled := scaffold{Module: module, App: name, Go: languageVersion(runtime.Version()), Version: t.Deps.Version}
	if tree, found := sourceTree(); found {
		filled.Version, filled.Replace = "v0.0.0", tree
	} else if !releasedVersion.MatchString(filled.Version) {
		return scaffold{}, fault.Advise(
			fmt.Errorf("this binary is of no released version (%s) and its source tree is not here", filled.Version),
			"run it from its source tree, or install a release",
		)
	}
	return filled, nil
}

var goVersion = regexp.MustCompile(`^go(\d+\.\d+)`)

// languageVersion turns "go1.26.8" into "1.26.0", so that any patch release builds the app; a toolchain without a
// number is a newer one than the oldest that Spillway builds with.
func languageVersion(version string) string {
	if match := goVersion.FindStringSubmatch(version); match != nil {
		return match[1] + ".0"
	}
	return "1.26.0"
}

// files renders every template.
func (s scaffold) files() (map[string][]byte, error) {
	entries, err := templates.ReadDir("template")
	if err != nil {
		return nil, fmt.Errorf("read the templates: %w", err)
	}
	files := map[string][]byte{}
	for _, entry := range entries {
		parsed, err := template.ParseFS(templates, "template/"+entry.Name())
		if err != nil {
			return nil, fmt.Errorf("read the template %s: %w", entry.Name(), err)
		}
		var content bytes.Buffer
		if err := parsed.Execute(&content, s); err != nil {
			return nil, fmt.Errorf("fill the template %s: %w", entry.Name(), err)
		}
		files[strings.TrimSuffix(entry.Name(), ".tmpl")] = content.Bytes()
	}
	return files, nil
}

// writeApp makes dir, refuses one that has anything in it, and writes the files of an app there.
func writeApp(dir string, files map[string][]byte) (err error) {
	root, err := safefile.Open(dir, 0o750, false)
	if wrong, ok := errors.AsType[*safefile.Error](err); ok {
		return &fault.UsageError{Problem: wrong.Path + " " + wrong.Wrong, Hint: wrong.Advice}
	}
	if err != nil {
		return fault.Advise(fmt.Errorf("make the directory: %w", err), "choose one that you may write")
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return fmt.Errorf("look into the directory: %w", err)
	}
	if len(entries) > 0 {
		return &fault.UsageError{
			Problem: fmt.Sprintf("%s is not empty: it has %s", dir, entries[0].Name()),
			Hint:    "choose a new directory",
		}
	}
	for name, content := range files {
		err := safefile.Write(root, name, 0o600, func(file *os.File) error {
			_, err := file.Write(content)
			return err
		})
		if err != nil {
			return fmt.Errorf("write the app: %w", err)
		}
	}
	return nil
}

// tidy completes go.mod and go.sum.
func tidy(ctx context.Context, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, tidyLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "mod", "tidy")
	cmd.Dir = dir
	output, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	if said := tidyProblem(string(output)); said != "" {
		return errors.New("go mod tidy: " + said)
	}
	return fmt.Errorf("go mod tidy: %w", err)
}

// unreachable matches how the go command ends a line about a module that it could not get.
var unreachable = regexp.MustCompile(
	`(?:\d{3} [A-Z][A-Za-z ]+|dial tcp.*|i/o timeout|module lookup disabled by GOPROXY=off)$`)

// tidyProblem is the first thing that `go mod tidy` complains of, in one line. It complains of every module that it
// cannot get, each with the addresses that it tried.
func tidyProblem(output string) string {
	const longest = 200
	first := ""
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if why := unreachable.FindString(line); why != "" {
			return "modules cannot be fetched (" + why + "): see to the network, or set GOPROXY to a proxy that has them"
		}
		switch {
		case strings.HasPrefix(line, "go: downloading "), strings.HasPrefix(line, "go: finding module "): // what it does
		case first == "":
			first = strings.TrimPrefix(line, "go: ")
		case strings.HasSuffix(first, ":"):
			first += " " + line
		}
	}
	if len(first) > longest {
		first = strings.ToValidUTF8(first[:longest], "") + "…"
	}
	return first
}
