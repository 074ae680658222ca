package command

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/python"
	"github.com/spillway-ml/spillway/workers/spawn"
)

const (
	// engineTimeout bounds a question to a container engine that is not about running the program.
	engineTimeout = 30 * time.Second
	// containerProcesses bounds the processes in a container: enough for loaders of data, too few for a fork bomb to harm
	// the host.
	containerProcesses = 4096
	// engineFile holds the engine of a workspace's container, so that what a crash left can be removed; containerFile the
	// container's ID, once its engine has made it.
	engineFile    = "engine"
	containerFile = "container"
)

// Places in a container.
const (
	containerWork = "/work"
	containerRoot = "/spillway"
)

// findEngine returns the container engine of this host. Podman is preferred, as it needs no daemon that runs as root.
//
// No container is a child of the command that runs it: Docker's are children of its daemon, and podman's of a monitor
// that leaves the command's process group. So they are held to a size by the flags of the command line alone, and not
// resized while they run; SIGTERM is passed on to them, but SIGKILL ends only the command: Remove and Sweep end the
// container.
func findEngine(lookup func(string) (string, bool)) (string, error) {
	paths, _ := lookup("PATH")
	for _, name := range []string{"podman", "docker"} {
		if found, err := inPath(name, paths); err == nil {
			return found, nil
		}
	}
	return "", fmt.Errorf("%w: it has an image, and this host has neither podman nor docker in PATH (%s); install one, "+
		"or run the command without an image", ErrProgram, paths)
}

// prepareContainer makes what only a container needs.
func (w *Workspace) prepareContainer(ctx context.Context) error {
	if err := os.WriteFile(filepath.Join(w.dir, engineFile), []byte(w.engine), 0o600); err != nil {
		return fmt.Errorf("remember the container: %w", err)
	}
	if _, chosen := w.command.Environment[python.Variable]; chosen {
		return nil
	}
	var err error
	w.imagePath, err = imagePath(ctx, w.engine, w.command.Image)
	return err
}

// imagePath is where Python looks for modules first in the containers of an image: a variable that is given to a
// container replaces the image's. An image that is not there is fetched, as it would be when the container starts; what
// cannot be fetched is told then.
func imagePath(ctx context.Context, program, image string) (string, error) {
	variables, err := imageVariables(ctx, program, image)
	if err != nil {
		//nolint:gosec // findEngine chose it
		_ = spawn.Run(exec.CommandContext(ctx, program, "pull", "--quiet", image))
		variables, _ = imageVariables(ctx, program, image)
	}
	for line := range strings.Lines(variables) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), python.Variable+"="); found {
			return value, nil
		}
	}
	return "", context.Cause(ctx)
}

// imageVariables are the variables of an image that is there, one a line.
func imageVariables(ctx context.Context, program, image string) (string, error) {
	return engine(ctx, program, "image", "inspect", "--format={{range .Config.Env}}{{println .}}{{end}}", image)
}

// containerProgram returns the engine's command line.
func (w *Workspace) containerProgram(launch Launch) (*Program, error) {
	reports, held, err := w.openPipe()
	if err != nil {
		return nil, err
	}
	variables := w.common(launch)
	variables[wire.ReportEnvironment] = containerRoot + "/report/pipe"
	variables[python.Variable] = python.Path(cmp.Or(variables[python.Variable], w.imagePath), containerRoot+"/python")
	variables["HOME"], variables["TMPDIR"] = containerRoot+"/home", containerRoot+"/tmp"
	if w.resume != "" {
		variables[wire.ResumeEnvironment] = path.Join(containerRoot, "resume", filepath.Base(w.resume))
	}
	for _, name := range []string{"HOME", "TMPDIR"} {
		if value, set := w.command.Environment[name]; set {
			variables[name] = value
		}
	}
	if launch.Devices != nil {
		// Of an image for GPUs, and of a runtime that gives all, this is what says which. Inside they count from 0.
		variables["NVIDIA_VISIBLE_DEVICES"] = cmp.Or(strings.Join(launch.Devices, ","), "void")
		delete(variables, "CUDA_VISIBLE_DEVICES")
	}
	c := container{
		engine: w.engine, name: containerName(w.dir), workspace: w.dir, work: w.work,
		directory: path.Join(containerWork, w.command.Directory),
		image:     w.command.Image, arguments: w.command.Arguments, variables: variables, grant: launch.Grant,
		devices: launch.Devices,
		user:    os.Getuid(), group: os.Getgid(),
	}
	arguments, environment := c.commandLine(w.options.lookup())
	return &Program{
		Command: &exec.Cmd{Path: w.engine, Args: arguments, Env: environment, Dir: w.dir}, Reports: reports,
		held: held,
	}, nil
}

// container is all that decides a container's command line.
type container struct {
	engine, name    string
	workspace, work string // on the host
	directory       string // in the container
	image           string
	arguments       []string
	variables       map[string]string
	grant           quantity.Size
	devices         []string
	user, group     int
}

// commandLine returns the engine's arguments and environment. Values of variables go by the environment, as everybody
// can see arguments; those whose names mean something to the engine itself go by the arguments.
func (c container) commandLine(lookup func(string) (string, bool)) (arguments, environment []string) {
	podman := filepath.Base(c.engine) == "podman"
	arguments = []string{
		c.engine, "run", "--name=" + c.name, "--init", "--pids-limit=" + strconv.Itoa(containerProcesses),
		"--cidfile=" + filepath.Join(c.workspace, containerFile),
		"--volume=" + c.work + ":" + containerWork, "--workdir=" + c.directory,
	}
	for _, name := range []string{"home", "tmp", "resume", "report"} {
		if dir := filepath.Join(c.workspace, name); name != "resume" || c.variables[wire.ResumeEnvironment] != "" {
			arguments = append(arguments, "--volume="+dir+":"+containerRoot+"/"+name)
		}
	}
	arguments = append(arguments, "--volume="+filepath.Join(c.workspace, "python")+":"+containerRoot+"/python:ro")
	if !podman || c.user == 0 {
		arguments = append(arguments, fmt.Sprintf("--user=%d:%d", c.user, c.group)) // so that its files can be deleted
	}
	if c.grant.CPU > 0 {
		arguments = append(arguments, fmt.Sprintf("--cpus=%.3f", c.grant.CPU.Cores()))
	}
	if c.grant.Memory > 0 {
		memory := strconv.FormatInt(int64(c.grant.Memory), 10)
		// Loaders of data pass batches in shared memory, of which engines give 64 MiB; it counts as memory.
		arguments = append(arguments, "--memory="+memory, "--memory-swap="+memory,
			"--shm-size="+strconv.FormatInt(int64(c.grant.Memory/2), 10))
	}
	for _, device := range c.devices {
		if podman {
			arguments = append(arguments, "--device=nvidia.com/gpu="+device)
		}
	}
	if len(c.devices) > 0 && !podman {
		arguments = append(arguments, `--gpus="device=`+strings.Join(c.devices, ",")+`"`)
	}
	own := []string{
		"PATH", "HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST",
		"TMPDIR",
	}
	values := spawn.Variables(lookup, own...)
	for _, pair := range spawn.Environment(c.variables) {
		name, value, _ := strings.Cut(pair, "=")
		if slices.Contains(own, name) {
			arguments = append(arguments, "--env="+pair)
			continue
		}
		arguments = append(arguments, "--env="+name)
		values[name] = value
	}
	arguments = append(arguments, "--entrypoint="+c.arguments[0], c.image)
	return append(arguments, c.arguments[1:]...), spawn.Environment(values)
}

// containerName returns the name of the container of a workspace.
func containerName(dir string) string { return "spillway-" + strings.ToLower(filepath.Base(dir)) }

// Owns reports whether a process of this machine runs in the workspace's container. It is false of all where there is
// none, or its engine runs it on another machine.
func (w *Workspace) Owns(pid int) bool {
	if w.engine == "" {
		return false
	}
	id, err := os.ReadFile(filepath.Join(w.dir, containerFile))
	if err != nil {
		return false
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && ofContainer(groups, strings.TrimSpace(string(id)))
}

// ofContainer reports whether a process in these control groups, as /proc tells them, is in the container of this ID.
// Engines name the groups of a container by its ID: /docker/ID, docker-ID.scope, libpod-ID.scope.
func ofContainer(groups []byte, id string) bool {
	const least = 12 // of an ID that tells containers apart
	return len(id) >= least && bytes.Contains(groups, []byte(id))
}

// OutOfMemory reports whether the kernel killed a process of the container because it reached its memory limit. Without
// a container it is false: whoever set the limits knows.
func (w *Workspace) OutOfMemory(ctx context.Context) (bool, error) {
	if w.engine == "" {
		return false, nil
	}
	out, err := engine(ctx, w.engine, "inspect", "--format={{.State.OOMKilled}}", containerName(w.dir))
	return strings.TrimSpace(out) == "true", err
}

// removeContainer ends and removes the container of the workspace dir, if there is one.
func removeContainer(ctx context.Context, dir string) error {
	name, err := os.ReadFile(filepath.Join(dir, engineFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	out, err := engine(ctx, string(name), "rm", "--force", "--volumes", containerName(dir))
	if err != nil && !strings.Contains(strings.ToLower(out), "no such container") {
		return err
	}
	return nil
}

// engine asks a container engine. The error shows what it said.
func engine(ctx context.Context, program string, arguments ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), engineTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, arguments...) //nolint:gosec // findEngine chose it
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := spawn.Run(cmd); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(arguments, " "), err,
			strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}
