// Package apps finds and builds the apps of users, and begins new ones: the command init.
package apps

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

const (
	// ModulePath is the module that this binary is built from.
	ModulePath = "github.com/spillway-ml/spillway"
	// sample is the app and the pipeline that come with Spillway.
	sample = "digits"
	// quietBuild is how long a build may take before it is worth a word.
	quietBuild = 3 * time.Second
)

// BuildAll builds every source and tells on stderr what takes long.
func BuildAll(ctx context.Context, t *tool.Tool, sources []string) ([]build.App, error) {
	var apps []build.App
	for _, source := range sources {
		app, err := Build(ctx, t, source)
		if err != nil {
			return nil, err
		}
		apps = append(apps, app)
	}
	return apps, nil
}

// Build builds one source and tells on stderr when it takes long. An error may have the lines of a compiler.
func Build(ctx context.Context, t *tool.Tool, source string) (build.App, error) {
	return BuildOf(ctx, t, "--app ", source)
}

// BuildOf is Build of a source that what names: a flag with the space behind it, or nothing.
func BuildOf(ctx context.Context, t *tool.Tool, what, source string) (build.App, error) {
	dir, err := t.MakeStateDir()
	if err != nil {
		return build.App{}, err
	}
	if _, err := os.Stat(source); err != nil {
		return build.App{}, &fault.UsageError{
			Problem: fmt.Sprintf("%s%s: %v", what, source, fault.WithoutPath(err)),
			Hint:    "give the directory of a Go main package that calls app.Main, or a binary built from one",
		}
	}
	said := &buildProgress{tool: t, source: source, inPlace: tool.IsTerminal(t.Err)}
	defer said.end()
	return build.NewStore(dir, said.told).Build(ctx, source)
}

// buildProgress says how long a build takes: on a terminal in one line that is rewritten, elsewhere in a line every 15
// seconds.
type buildProgress struct {
	tool    *tool.Tool
	source  string
	inPlace bool

	mutex sync.Mutex
	last  time.Duration // guarded by mutex; 0 before anything was said
}

func (p *buildProgress) told(phase build.Phase, age time.Duration) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.tool.Quiet || phase != build.Compile || age < quietBuild ||
		(!p.inPlace && p.last > 0 && age-p.last < tool.WordEvery) {
		return
	}
	p.last = age
	text := fmt.Sprintf("building %s ... %d s; this is slow only the first time", p.source, int(age.Seconds()))
	if p.inPlace {
		p.tool.Complain("\r\x1b[K%s", text)
	} else {
		p.tool.Complain("%s\n", text)
	}
}

func (p *buildProgress) end() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.inPlace && p.last > 0 {
		p.tool.Complain("\r\x1b[K")
	}
}

// For returns the apps that a run of pipeline needs besides those that stack (nil for a new one) serves: those of the
// flags, else none when the pipeline is served, else the newest stored build that has it, else none when it is a stored
// chain; or the sample.
func For(ctx context.Context, t *tool.Tool, pipeline string, sources []string, stack *web.Stack) ([]build.App, error) {
	if len(sources) > 0 {
		apps, err := BuildAll(ctx, t, sources)
		if err != nil {
			return nil, err
		}
		return apps, knownAmong(pipeline, apps, stack)
	}
	if stack != nil && slices.Contains(stack.Pipelines(), pipeline) {
		return nil, nil
	}
	if pipeline == sample {
		source, err := sampleSource()
		if err != nil {
			return nil, err
		}
		return BuildAll(ctx, t, []string{source})
	}
	dir, err := t.StateDir()
	if err != nil {
		return nil, err
	}
	stored, err := build.NewStore(dir, nil).Newest()
	if err != nil {
		return nil, err
	}
	for _, app := range stored {
		if slices.Contains(pipelinesOf(app), pipeline) {
			return []build.App{app}, nil
		}
	}
	chains, err := build.NewChains(dir).Newest()
	if err != nil {
		return nil, err
	}
	for _, c := range chains {
		if c.Name() == pipeline {
			return nil, nil // serveStoredChain serves it
		}
		stored = append(stored, build.App{Descriptor: c.App()})
	}
	return nil, knownAmong(pipeline, stored, stack)
}

// knownAmong returns an error of usage when neither the apps nor the stack have the pipeline.
func knownAmong(pipeline string, apps []build.App, stack *web.Stack) error {
	var known []string
	if stack != nil {
		known = stack.Pipelines()
	}
	for _, app := range apps {
		known = append(known, pipelinesOf(app)...)
	}
	if slices.Contains(known, pipeline) {
		return nil
	}
	if !slices.Contains(known, sample) && len(apps) == 0 {
		known = append(known, sample)
	}
	slices.Sort(known)
	return web.UnknownPipeline(pipeline, slices.Compact(known))
}

func pipelinesOf(app build.App) []string {
	var names []string
	for _, pipeline := range app.Descriptor.Pipelines {
		names = append(names, pipeline.Name)
	}
	return names
}

// sampleSource returns the sample's binary beside this one, or its package in the source tree.
func sampleSource() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), sample)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return beside, nil
		}
	}
	if tree, found := sourceTree(); found {
		return filepath.Join(tree, "cmd", sample), nil
	}
	return "", fault.Advise(
		errors.New("the sample digits is neither beside this binary nor is this its source tree"),
		"put the binary digits beside spillway, run it from the source tree, or give --app DIR",
	)
}

// sourceTree returns the root of Spillway's source tree: the one that holds the working directory, this binary, or the
// files that it was built from.
func sourceTree() (string, bool) {
	var candidates []string
	if dir, err := os.Getwd(); err == nil {
		candidates = append(candidates, dir)
	}
	if self, err := os.Executable(); err == nil {
		candidates = append(candidates, filepath.Dir(self))
	}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) { // with -trimpath it is not
		candidates = append(candidates, filepath.Dir(file))
	}
	for _, dir := range candidates {
		if root, found := moduleRoot(dir); found && moduleName(root) == ModulePath {
			return root, true
		}
	}
	return "", false
}

// moduleRoot returns the nearest directory at or above dir that has a go.mod.
func moduleRoot(dir string) (string, bool) {
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", false
		}
		dir = parent
	}
}

// moduleName returns the module that the go.mod of root declares; empty when it cannot be read.
func moduleName(root string) string {
	file, err := os.Open(filepath.Join(root, "go.mod"))
	if err != nil {
		return ""
	}
	defer func() { _ = file.Close() }() // it was only read
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, found := strings.CutPrefix(strings.TrimSpace(lines.Text()), "module "); found {
			return strings.Trim(strings.TrimSpace(name), `"`)
		}
	}
	return ""
}
