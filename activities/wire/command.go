package wire

import (
	"time"

	"github.com/spillway-ml/spillway/activities"
)

// Command is the input of a command stage: a program to run, with the files it reads and writes.
type Command struct {
	// Arguments are the program and its arguments. A program without a slash is looked up in PATH, one with a slash below
	// Directory.
	Arguments []string `json:"arguments"`
	// Code is a tree that is unpacked into the working directory; the zero Ref when there is none.
	Code activities.Ref `json:"code"`
	// InPlace is a directory of the host that the program runs in, and that is left as the program leaves it. Empty runs
	// it in a directory of its own, which is deleted after the attempt.
	InPlace string `json:"in_place,omitempty"`
	// Directory is where in the tree, or below InPlace, the program starts; empty means its top. It never leaves the tree.
	Directory string `json:"directory,omitempty"`
	// Environment is set for the program, besides the few variables that every child has. It is in the run's history: no
	// secrets.
	Environment map[string]string `json:"environment,omitempty"`
	// Requirements is a file of Python requirements from which a virtual environment is made, once for each digest and
	// host; the zero Ref when there is none.
	Requirements activities.Ref `json:"requirements"`
	// Image is a container image in which the program runs; empty runs it on the host.
	Image string `json:"image,omitempty"`
	// Files are put into the working directory before the program starts.
	Files []CommandFile `json:"files,omitempty"`
	// Outputs are kept when the program has ended well.
	Outputs []CommandOutput `json:"outputs,omitempty"`
	// KeepChanged keeps the files that the program has made or changed besides, as one tree.
	KeepChanged bool `json:"keep_changed,omitempty"`
	// Parameters are the numbers that the size of an attempt may depend on, by name, and the values of categories
	// (AddCategories): `spillway run` finds those among the arguments.
	Parameters map[string]float64 `json:"parameters,omitempty"`
	// Program is what mainly runs, "python3" of `sh -c "python3 fit.py"`; empty means the first argument. Imports are the
	// modules of others that it imports, by name; nil where nothing is known of them. Attempts of stages that have these
	// in common are taken to be alike. Whoever sends the code has read them in it (workers/command/imports).
	Program string   `json:"program,omitempty"`
	Imports []string `json:"imports,omitzero"`
	// Hosts is on how many hosts at once the program runs, each of which holds the attempt's size: on the first as ever,
	// on the others beside it and for as long as there, and GangEnvironment tells each of the others. 0 and 1 is one host.
	// With LeastHosts fewer will do, as many as have room. Their outputs are those of the first.
	Hosts      int `json:"hosts,omitempty"`
	LeastHosts int `json:"least_hosts,omitempty"`
	// Grace is the time between SIGTERM and SIGKILL when the program is stopped; 0 means 10 seconds.
	Grace time.Duration `json:"grace_ns,omitempty"`
}

// Gang is on how many hosts the program runs at least and at most: 1 and 1 where it is on one.
func (c Command) Gang() (least, most int) {
	most = max(c.Hosts, 1)
	if c.LeastHosts > 0 {
		return min(c.LeastHosts, most), most
	}
	return most, most
}

// usualGrace is the Grace of a command that does not say.
const usualGrace = 10 * time.Second

// Stops is how long the program may go on after it was asked to end.
func (c Command) Stops() time.Duration {
	if c.Grace <= 0 {
		return usualGrace
	}
	return c.Grace
}

// CommandFile is an artifact in the working directory of a command.
type CommandFile struct {
	// Path is where it is put, with slashes, below the working directory.
	Path string `json:"path"`
	// Artifact is its content.
	Artifact activities.Ref `json:"artifact"`
	// Tree says that Artifact is a packed directory that is unpacked at Path.
	Tree bool `json:"tree,omitempty"`
}

// CommandOutput names what a command leaves for later stages.
type CommandOutput struct {
	// Name is what later stages call it.
	Name string `json:"name"`
	// Path is the file or directory that holds it, with slashes, below the working directory.
	Path string `json:"path"`
	// Optional says that the command may leave it out.
	Optional bool `json:"optional,omitempty"`
}

// CommandResult is the output of a command stage.
type CommandResult struct {
	// Exit is the program's exit code: 0 unless a command is allowed to fail.
	Exit int `json:"exit"`
	// Outputs are the files kept, by name.
	Outputs map[string]CommandFile `json:"outputs,omitempty"`
	// Changed are the files that were made or changed; the zero Ref when there are none or they were not asked for.
	Changed activities.Ref `json:"changed"`
	// Values are what the program reported as its result by the line protocol, by name: JSON values.
	Values map[string]any `json:"values,omitempty"`
	// NotFinite are the metrics of the last step that it reported whose values were no finite numbers, such as a loss that
	// has diverged, by name.
	NotFinite []string `json:"not_finite,omitempty"`
}

// ReportEnvironment names the pipe to which a command, or what it starts, writes its reports, one JSON object a line:
//
//	{"progress": 3, "metrics": {"loss": 0.2}}   a step is done
//	{"progress": 1200, "of": 5000}              so much of so much is done: steps, rows or bytes
//	{"checkpoint": "path/to/file"}              a file or directory to resume from; written to no more, but for a
//	                                            rename of another to it
//	{"result": {"accuracy": 0.98}}              values of the result; later lines add to earlier ones
//	{"out_of_memory": "device"}                 memory was refused: "host" or "device"
//	{"retry": false}                            another attempt would fail as this one does: none is made, but after
//	                                            running out of memory
//	{"training": {"steps": 3, "parts": [...]}}  how a split training goes beside its plan; a later line replaces
//	                                            it (predictor.Training)
//
// Lines of up to 4 KiB that several processes write are not mixed. On a host it is open as descriptor 4 of the command,
// too. Scripts in Python have a module for it: workers/python.
//
// ResumeEnvironment names the path of the checkpoint of an earlier attempt; it is unset when there is none.
const (
	ReportEnvironment = "SPILLWAY_REPORT"
	ResumeEnvironment = "SPILLWAY_RESUME"
)

// Environment variables that tell a command who and how large it is.
const (
	RunEnvironment     = "SPILLWAY_RUN"
	StageEnvironment   = "SPILLWAY_STAGE"
	TaskEnvironment    = "SPILLWAY_TASK"
	AttemptEnvironment = "SPILLWAY_ATTEMPT"
	// CPUEnvironment is the grant in thousandths of a core, MemoryEnvironment in bytes.
	CPUEnvironment    = "SPILLWAY_CPU_MILLI"
	MemoryEnvironment = "SPILLWAY_MEMORY_BYTES"
	// TraceEnvironment is the trace context below which the program's own spans belong.
	TraceEnvironment = "TRACEPARENT"
	// TrainingsEnvironment is how earlier split trainings of the stage went: a JSON list of predictor.Training, newest
	// first. It is unset when there are none.
	TrainingsEnvironment = "SPILLWAY_TRAININGS"
	// TimeToLossEnvironment is how long attempts like this one go on in the mean before they are lost with their host, in
	// seconds.
	TimeToLossEnvironment = "SPILLWAY_TIME_TO_LOSS_SECONDS"
	// GangEnvironment is set where a program runs on several hosts at once: descriptor 5 is a pipe that has the gang as
	// package workers/gang describes it, which is a secret, and 6 a socket that listens for the others on all hosts but
	// the first.
	GangEnvironment = "SPILLWAY_GANG"
)
