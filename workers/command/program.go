package command

import (
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/python"
	"github.com/spillway-ml/spillway/workers/spawn"
)

const (
	// reportDescriptor is where a program on the host finds the pipe for its reports, too.
	reportDescriptor = 4
	// memoryShare is the part of a grant that Go's runtime is told to stay within; the rest is for what it does not count.
	memoryShare = 0.9
	// strayGrace is how long reports are read after the program's end.
	strayGrace = time.Second
)

// Launch says as what a program is started.
type Launch struct {
	Run, Stage, Task string
	// Attempt counts from 1.
	Attempt int
	// Grant is the attempt's size; libraries that make a thread for each core are told of it. The zero Size tells them
	// nothing.
	Grant quantity.Size
	// Grows says that the attempt may take more memory than its grant: a program in Go is told no limit then, to which it
	// would spend its time collecting garbage while there is room.
	Grows bool
	// Devices are the indices or UUIDs of the GPUs that the program may use, as CUDA names them; nil says nothing about
	// GPUs. A container has these only, numbered from 0.
	Devices []string
	// Trainings are how earlier split trainings of the stage went, newest first, at most predictor.PastTrainings of them.
	Trainings []predictor.Training
	// TimeToLoss is how long attempts like this one go on in the mean before they are lost with their host; 0 tells it
	// nothing.
	TimeToLoss time.Duration
	// Traceparent is the trace context below which the program's own spans belong; empty tells it none.
	Traceparent string
	// Secrets are those of the stage, by their names; each is a variable (wire.SecretVariable).
	Secrets map[string]string
	// Extra are variables of the operator; those of the command win over them.
	Extra map[string]string
	// Gang is what the program is told of the gang that it is in, a secret, as package workers/gang writes it; nil for
	// none. Listener is a socket that listens for the others, nil on the first host; the program's start closes it.
	Gang     []byte
	Listener *os.File
}

// Program is the program of an attempt, not yet started.
type Program struct {
	// Command is complete but for Stdout, Stderr and WaitDelay, which are the caller's. Its standard input is empty. File
	// descriptor 3 is /dev/null, which a child of the engine has other uses for, and 4 is the pipe of the reports.
	Command *exec.Cmd
	// Reports is our end of the pipe, for Workspace.Follow. Close it when both the program and Follow have ended.
	Reports *os.File

	user   *spawn.User // as whom it runs; nil for this process's
	theirs []*os.File  // the program's ends, until it is started
	held   *os.File    // keeps the pipe from ending before the program, or what it starts, has opened it
}

// Start starts the program by start, which sets its limits and calls its Start. Whether that succeeds or not, the
// program's ends of the pipes are closed here; after an error Reports is closed as well.
func (p *Program) Start(start func(*exec.Cmd) error) error {
	err := start(p.Command)
	if p.user != nil && errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w; it runs as %s, who must have the right to execute it and to enter all directories on the way",
			err, p.user.Name)
	}
	if err = errors.Join(err, p.closeTheirs()); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", p.Command.Path, err), p.Discard())
	}
	return nil
}

// Ended says that the program has been waited for. Follow does not end before; it does when it has read what is there,
// at the latest a second later: a process that the program left may hold the pipe open, and what that one reports is
// nobody's.
func (p *Program) Ended() error {
	err := p.Reports.SetReadDeadline(time.Now().Add(strayGrace))
	if p.held != nil {
		err = errors.Join(err, p.held.Close())
		p.held = nil
	}
	return err
}

// Discard closes what a program holds that will not be started.
func (p *Program) Discard() error {
	return errors.Join(p.closeTheirs(), p.Ended(), p.Reports.Close())
}

func (p *Program) closeTheirs() (err error) {
	for _, file := range p.theirs {
		err = errors.Join(err, file.Close())
	}
	p.theirs = nil
	return err
}

// Program returns the program, ready to be started. On the host it looks for the file first and says with ErrProgram
// why it cannot be executed; in a container the engine does.
func (w *Workspace) Program(launch Launch) (*Program, error) {
	if w.command.Image != "" {
		return w.containerProgram(launch)
	}
	variables := w.variables(launch)
	named := w.command.Arguments[0]
	path, err := find(named, variables["PATH"], w.Directory())
	if own := w.options.Own; err != nil && own != "" && filepath.IsAbs(named) &&
		filepath.Base(named) == filepath.Base(own) {
		if _, missing := os.Stat(named); errors.Is(missing, fs.ErrNotExist) {
			path, err = own, executable(own, variables["PATH"])
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProgram, err)
	}
	awaitUnwritten(path)
	reports, held, err := w.openPipe()
	if err != nil {
		return nil, err
	}
	theirs, err := os.OpenFile(w.pipe(), os.O_WRONLY, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the pipe for reports: %w", err), reports.Close(), held.Close())
	}
	nothing, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the pipe for reports: %w", err), reports.Close(), held.Close(),
			theirs.Close())
	}
	cmd := &exec.Cmd{Path: path, Args: w.command.Arguments, Env: spawn.Environment(variables), Dir: w.Directory()}
	cmd.ExtraFiles = []*os.File{nothing, reportDescriptor - 3: theirs}
	p := &Program{
		Command: cmd, Reports: reports, user: w.options.User, theirs: []*os.File{nothing, theirs}, held: held,
	}
	if launch.Gang == nil {
		return p, nil
	}
	told, err := filled(launch.Gang)
	if err != nil {
		return nil, errors.Join(err, p.Discard())
	}
	cmd.ExtraFiles, p.theirs = append(cmd.ExtraFiles, told), append(p.theirs, told)
	if launch.Listener != nil {
		cmd.ExtraFiles, p.theirs = append(cmd.ExtraFiles, launch.Listener), append(p.theirs, launch.Listener)
	}
	return p, nil
}

// pipeHolds is what a pipe holds that nobody reads yet, at least.
const pipeHolds = 64 << 10

// filled is the end of a pipe from which a text is read once, and by nobody else.
func filled(text []byte) (*os.File, error) {
	if len(text) > pipeHolds {
		return nil, fmt.Errorf("what the program is told of its gang is %d bytes; a pipe holds %d", len(text), pipeHolds)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	_, err = write.Write(text)
	if err = errors.Join(err, write.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("fill a pipe: %w", err), read.Close())
	}
	return read, nil
}

// openPipe opens the pipe for reports to read, and an end that writes nothing.
func (w *Workspace) openPipe() (reports, held *os.File, err error) {
	reports, err = os.OpenFile(w.pipe(), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open the pipe for reports: %w", err)
	}
	held, err = os.OpenFile(w.pipe(), os.O_WRONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the pipe for reports: %w", err), reports.Close())
	}
	return reports, held, nil
}

// variables returns the environment on the host: what the host has of a few, what follows from the launch, what the
// operator and then the command say, and what the engine says.
func (w *Workspace) variables(launch Launch) map[string]string {
	lookup := w.options.lookup()
	hosts := []string{"PATH", "LANG", "TZ"}
	if w.command.InPlace != "" {
		hosts = append(hosts, "HOME")
	}
	values := map[string]string{"TMPDIR": w.temporary(), "HOME": w.home()}
	maps.Copy(values, spawn.Variables(lookup, hosts...))
	maps.Copy(values, w.common(launch))
	if launch.Devices != nil { // whatever the command says: others have the rest
		values["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID" // the order of nvidia-smi
		values["CUDA_VISIBLE_DEVICES"] = strings.Join(launch.Devices, ",")
	}
	values[wire.ReportEnvironment] = w.pipe()
	if launch.Gang != nil {
		values[wire.GangEnvironment] = "1"
	}
	values[python.Variable] = python.Path(values[python.Variable], w.module())
	if w.resume != "" {
		values[wire.ResumeEnvironment] = w.resume
	}
	if w.python != nil {
		values["VIRTUAL_ENV"] = w.python.dir
		values["PATH"] = filepath.Join(w.python.dir, "bin") + string(os.PathListSeparator) + values["PATH"]
	}
	return values
}

// common returns what programs on the host and in containers are told alike.
func (w *Workspace) common(launch Launch) map[string]string {
	values := map[string]string{"PYTHONUNBUFFERED": "1"} // so that lines are seen when they are written
	if cpu := launch.Grant.CPU; cpu > 0 {
		// A runtime that counts the host's cores makes a thread for each, and they wait for each other in the grant's few.
		threads := strconv.FormatInt(int64((cpu+quantity.Core-1)/quantity.Core), 10)
		for _, name := range []string{
			"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
			"GOMAXPROCS",
		} {
			values[name] = threads
		}
		// Threads of OpenMP that spin while they wait take the core from those they wait for: in two cores a small net of
		// PyTorch trained half as fast, on one a third.
		values["OMP_WAIT_POLICY"] = "PASSIVE"
		values[wire.CPUEnvironment] = strconv.FormatInt(int64(cpu), 10)
	}
	if memory := launch.Grant.Memory; memory > 0 {
		if !launch.Grows {
			values["GOMEMLIMIT"] = strconv.FormatInt(int64(float64(memory)*memoryShare), 10)
		}
		values[wire.MemoryEnvironment] = strconv.FormatInt(int64(memory), 10)
	}
	maps.Copy(values, launch.Extra)
	maps.Copy(values, w.command.Environment)
	for name, value := range launch.Secrets {
		values[wire.SecretVariable(name)] = value
	}
	if launch.Traceparent != "" {
		values[wire.TraceEnvironment] = launch.Traceparent
	}
	if past := trainings(launch.Trainings); past != "" {
		values[wire.TrainingsEnvironment] = past
	}
	if launch.TimeToLoss > 0 {
		values[wire.TimeToLossEnvironment] = strconv.FormatFloat(launch.TimeToLoss.Seconds(), 'f', 0, 64)
	}
	values[wire.RunEnvironment], values[wire.StageEnvironment], values[wire.TaskEnvironment] = launch.Run, launch.Stage,
		launch.Task
	values[wire.AttemptEnvironment] = strconv.Itoa(launch.Attempt)
	return values
}

// maxTrainings bounds the variable that tells of earlier trainings, in bytes: Linux takes 128 KiB for one variable.
const maxTrainings = 96 << 10

// trainings returns the newest of past that there is room for, as a JSON list; empty when there are none.
func trainings(past []predictor.Training) string {
	for n := min(len(past), predictor.PastTrainings); n > 0; n-- {
		// Numbers that JSON has not are in none that was folded; such a list would be left out.
		if encoded, err := json.Marshal(past[:n]); err == nil && len(encoded) <= maxTrainings {
			return string(encoded)
		}
	}
	return ""
}

// find returns the file that is executed for a program's name: one without a slash is looked up in the list of paths,
// one with a slash counts from directory. The error says why it cannot be executed.
func find(program, paths, directory string) (string, error) {
	if !strings.Contains(program, "/") {
		found, err := inPath(program, paths)
		if err != nil && isFile(filepath.Join(directory, program)) {
			return "", fmt.Errorf("%w; there is one where the command starts: write ./%s", err, program)
		}
		if err != nil {
			return "", err
		}
		return found, executable(found, paths)
	}
	file := program
	if !filepath.IsAbs(file) {
		file = filepath.Join(directory, file)
	}
	return file, executable(file, paths)
}

// inPath looks a program up in a list of directories. Relative ones and empty ones are passed over: they mean another
// directory to everybody.
func inPath(program, paths string) (string, error) {
	var other error
	for _, dir := range filepath.SplitList(paths) {
		if !filepath.IsAbs(dir) {
			continue
		}
		file := filepath.Join(dir, program)
		info, err := os.Stat(file)
		switch {
		case err != nil || info.IsDir():
		case info.Mode()&0o111 == 0:
			other = fmt.Errorf("%s is not executable; chmod +x it", file)
		default:
			return file, nil
		}
	}
	if other != nil {
		return "", other
	}
	return "", fmt.Errorf("program %q is not in PATH (looked in %s)", program,
		strings.ReplaceAll(paths, string(os.PathListSeparator), ", "))
}

// executable refuses a file that the kernel would not execute, with the reason. Where it does not know, it refuses
// nothing.
func executable(file, paths string) error {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("there is no program %s", file)
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a directory", file)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is no plain file", file)
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("%s is not executable; chmod +x it before it is packed, or start it by its interpreter", file)
	}
	head, err := readHead(file)
	if err != nil {
		return nil //nolint:nilerr // what cannot be read may still be executed
	}
	if line, script := strings.CutPrefix(string(head), "#!"); script {
		return interpreter(file, line, paths)
	}
	if strings.HasPrefix(string(head), elf.ELFMAG) {
		return loader(file)
	}
	if utf8.Valid(head) && !strings.ContainsRune(string(head), 0) && runtime.GOOS == "linux" {
		return fmt.Errorf("%s is a text without an interpreter; begin it with a line like #!/bin/sh, or start it by its "+
			"interpreter", file)
	}
	return nil
}

// readHead reads as much as the kernel looks at (BINPRM_BUF_SIZE).
func readHead(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // another program may put a pipe there at any time
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	head := make([]byte, 256)
	n, err := io.ReadFull(f, head)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil
	}
	return head[:n], err
}

// interpreter checks the first line of a script: the kernel reports a missing interpreter as if the script were
// missing.
func interpreter(file, head, paths string) error {
	line, _, _ := strings.Cut(head, "\n")
	if strings.HasSuffix(line, "\r") {
		return fmt.Errorf("the first line of %s ends with a carriage return, which becomes part of the interpreter's name; "+
			"save the file with Unix line ends", file)
	}
	words := strings.Fields(line)
	if len(words) == 0 {
		return fmt.Errorf("the first line of %s has no interpreter after its #! mark", file)
	}
	if info, err := os.Stat(words[0]); filepath.IsAbs(words[0]) && (err != nil || info.IsDir() || info.Mode()&0o111 == 0) {
		return fmt.Errorf("the first line of %s names the interpreter %s, which this host does not have or cannot execute",
			file, words[0])
	}
	if filepath.Base(words[0]) == "env" && len(words) == 2 && !strings.HasPrefix(words[1], "-") &&
		!strings.Contains(words[1], "/") {
		if _, err := inPath(words[1], paths); err != nil {
			return fmt.Errorf("the first line of %s asks for an interpreter: %w", file, err)
		}
	}
	return nil
}

// loader checks that the dynamic loader of a binary is there: a program built against another C library (musl, or
// another architecture's) is reported as missing otherwise.
func loader(file string) error {
	binary, err := elf.Open(file)
	if err != nil {
		return fmt.Errorf("%s looks like a program, but is damaged: %w", file, err)
	}
	defer binary.Close() //nolint:errcheck // it was only read
	for _, segment := range binary.Progs {
		if segment.Type != elf.PT_INTERP {
			continue
		}
		name, err := io.ReadAll(io.LimitReader(segment.Open(), 4096))
		if err != nil {
			return nil // the kernel will tell
		}
		wanted := strings.TrimRight(string(name), "\x00")
		if _, err := os.Stat(wanted); err != nil {
			return fmt.Errorf("%s needs the loader %s, which this host does not have: it is built for another system (%s)", file,
				wanted, binary.Machine)
		}
	}
	return nil
}
