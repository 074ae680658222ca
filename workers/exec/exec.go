// Package exec trains a model whose parts run one after another on devices of their own: the port that executors
// implement, and the engine that drives a schedule over the parts.
package exec

import (
	"context"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
)

// Executor runs one model, with its data and its loss. The engine owns placement, schedule, checkpoints and failure;
// the executor owns tensors. Its methods are safe for concurrent use.
type Executor interface {
	// Name is the kind of executor: "torch", "gomlx".
	Name() string
	// Probe runs the model once, unsplit, and measures its operations.
	Probe(ctx context.Context, options ProbeOptions) (Probe, error)
	// Load loads every part of a split with its parameters as the seed makes them: the same ones whatever the split. The
	// pipeline lives until Close or the end of ctx.
	Load(ctx context.Context, layout Layout) (Pipeline, error)
}

// Surveyor is an executor that trains on CUDA devices and knows them. Its method is safe for concurrent use.
type Surveyor interface {
	// Survey looks at CUDA devices, each by its Index, and measures the ways of tensors. It is asked before a model is
	// looked at: a device that is not there, or that this executor cannot use, is an error that matches [ErrRequest].
	Survey(ctx context.Context, devices []Device) ([]Surveyed, error)
}

// Surveyed is what an executor knows of a CUDA device. Rates are in bytes a second; 0 is not known.
type Surveyed struct {
	// Name is that of the device's model, as its driver has it: devices of one name take equally long.
	Name string
	// Memory is what the device has, Free what of it a part may have now, beside what its own process holds there.
	Memory, Free quantity.Bytes
	// Context is what each process holds of the device whatever it computes: its context, kernels and libraries. It is
	// known of devices that several parts are to share, else 0.
	Context quantity.Bytes
	// Out is how fast a message gets from the device to where other parts read it, and In how fast it gets from there to
	// the device. Copy is how fast the device copies its own memory, and Save how fast state gets from it to memory that
	// the host just gave, as a checkpoint's copy does.
	Out, In, Copy, Save float64
	// Float32Only says that the device does not compute in bfloat16.
	Float32Only bool
}

// ProbeOptions say how a model is probed.
type ProbeOptions struct {
	// Samples is how many samples are run at once, from 1.
	Samples int
	// Device is where. On a CUDA device, operations may be run one by one, so that the model may be larger than it.
	Device Device
	// Precision is that of the training, whose sizes and times are measured; Float32 where empty.
	Precision Precision
}

// Probe is what an executor finds out about a model.
type Probe struct {
	// Graph holds the operations with what they cost and hold for Samples samples. IDs are stable: the same model has the
	// same.
	Graph graph.Graph
	// Samples is how many samples that was.
	Samples int
	// Forward and Backward are measured over the whole model, unsplit; 0 where the device cannot hold it.
	Forward, Backward graph.Seconds
	// Model is a digest of the names, shapes and types of the parameters; checkpoints of one model fit no other.
	Model string
	// Dataset is how many samples the data has; 0 where it does not say.
	Dataset int
	// Base is what a worker's process holds before it holds a part; 0 where parts share a process.
	Base quantity.Bytes
	// Data is what the data hold in the process of the first part, the whole of it where it is in memory; 0 where that is
	// not known.
	Data quantity.Bytes
	// Fetching is what it takes to get Samples samples of the data; the zero value where that is not known.
	Fetching Fetching
	// Working is what each operation of the graph takes while it works; nil where that was not measured.
	Working []Working
	// Tied are trained parameters that several operations read and that may be apart all the same.
	Tied []Tied
	// FLOPs is how many floating-point operations the forward pass of Samples samples takes for its products, two for each
	// multiplication with an addition, and PeakFLOPS how many of them the device does in a second when it does nothing but
	// products of matrices in that precision; 0 where they are not known.
	FLOPs, PeakFLOPS float64
	// Slowdown is how many times as long as in Float32 a product takes in the wanted precision on a CPU, which may have to
	// imitate it; 0 where that was not measured.
	Slowdown float64
	// Validates says that there are validation data, Metrics are the names of what the user computes of them; nil where
	// they are not known.
	Validates bool
	Metrics   []string
	// Statistics is the name of the first operation that computes statistics over the samples that pass together, as
	// batch normalization does, so that replicas learn otherwise than one process; empty without one.
	Statistics string
}

// Fetching is what it takes to fetch some samples.
type Fetching struct {
	// Seconds is by one thread.
	Seconds graph.Seconds
	// Batch is the size of their tensors, Working the most memory that is taken meanwhile, those tensors included.
	Batch, Working quantity.Bytes
	// Processes is how many can fetch at once, as [Layout.DataWorkers]; 0 where none can beside the part that computes.
	// Unasked is how many of them may where nobody has asked for some: one where the data hold files open, in which
	// several processes would move each other's place.
	Processes, Unasked int
}

// Tied is a trained parameter that several operations read, such as the embedding of a language model that is its head
// as well. The first part that has one of them trains it. Every other one holds a copy and its gradient; in a step it
// is sent the copy once and returns the gradient once. Graph counts the parameter where Ops begins.
type Tied struct {
	// Ops are indices of the graph's operations, two or more, in its order.
	Ops []int
	// Bytes is the size of the parameter.
	Bytes quantity.Bytes
}

// Working is what one operation takes of its device's memory while it works, for Samples samples.
type Working struct {
	// Forward is the most that its forward pass has at once besides its inputs: outputs and what is kept are in it.
	Forward quantity.Bytes
	// Backward is the most that its backward pass has at once besides what was kept for it and the gradients of its
	// outputs: those of its inputs and its parameters are in it.
	Backward quantity.Bytes
	// Library is what libraries keep for good once it ran, in neither of them. Operations of one process share it.
	Library quantity.Bytes
}

// Kinds of devices.
const (
	CPU  = "cpu"
	CUDA = "cuda"
)

// Device is what a part runs on.
type Device struct {
	// ID is for people: "cpu-0", "cuda:1". It is unique in a layout, unless parts share the device.
	ID string
	// Host is the number of the host in the gang that trains: 0 is this process's, which is the only one without a gang.
	Host int `json:",omitempty"`
	// Kind is CPU or CUDA; empty is CPU.
	Kind string
	// Index is the number of a CUDA device among those that this process sees.
	Index int
	// Class is the name of a CUDA device's model; empty where nobody asked its driver.
	Class string
	// Threads is how many CPU threads one operation may use; 0 leaves it to the executor, as CUDA devices do.
	Threads int
	// CPUs are the cores that a worker with a process of its own is pinned to; nil pins nothing.
	CPUs []int
	// Memory is what the part may hold on the device; 0 means no bound. It is kept on CUDA devices; on CPUs the attempt's
	// own limit counts.
	Memory quantity.Bytes
}

// Precision is the type in which a model computes its products. Parameters, gradients and the loss stay float32.
type Precision string

// The precisions. What a device does not compute in is refused, by the executor or, of CUDA devices, by what a survey
// says of them.
const (
	Float32 Precision = "float32"
	// TF32 is float32 whose products are made with 10 bits of mantissa, by CUDA devices alone.
	TF32 Precision = "tf32"
	// BFloat16 has the range of float32 and 8 bits of mantissa.
	BFloat16 Precision = "bfloat16"
	// Float16 has 11 bits of mantissa and ends at 65504. The loss is scaled, so that gradients do not vanish; a step
	// whose gradients overflow in any part is made in none, see [Stage.Step].
	Float16 Precision = "float16"
)

// Precisions are all of them, the most exact one first.
func Precisions() []Precision { return []Precision{Float32, TF32, BFloat16, Float16} }

// Layout says how a model is split and trained.
type Layout struct {
	// Parts are the parts in the order in which a sample passes them; one part is the unsplit model. No tensor goes
	// backwards.
	Parts []Part
	// Batch is the number of samples of one step, MicroBatches into how many micro-batches it is cut: micro-batch m has
	// the samples from m*Batch/MicroBatches to (m+1)*Batch/MicroBatches, rounded down.
	Batch, MicroBatches int
	// Of is how many samples the batches of the data have, where those of the layout are the first of them, as of one of
	// several replicas; 0 is Batch.
	Of int
	// Seed makes parameters, the order of samples and dropout masks.
	Seed uint64
	// Precision is Float32 where empty.
	Precision Precision
	// Compile has each part compiled where the executor can, and refused where it cannot: losses are those of a part that
	// is not compiled but for rounding.
	Compile bool
	// Optimizer updates the parameters.
	Optimizer Optimizer
	// Steps is how many steps the training has altogether; 0 is Epochs passes over the data, or not known where that is 0,
	// too. A model's scheduler may go by it.
	Steps  int64
	Epochs int
	// Replicas is how many copies of the parts train together, each on its share of every batch: replica r has the samples
	// from r*Batch/Replicas to (r+1)*Batch/Replicas, rounded down, and cuts them into MicroBatches. 0 is 1.
	Replicas int
	// Sharding says what the replicas of a part divide among themselves; empty is ShardNone.
	Sharding Sharding
	// Collective is for pipelines that are a [Stepper].
	Collective Collective
	// DataWorkers is how many processes fetch the batches that follow while a step computes; with 0, the process of the
	// first part fetches each when it is asked for. The batches are the same ones. What can only be read one after another
	// has one process at most, and an executor without processes none.
	DataWorkers int
	// DataTimeout is how long a batch may be waited for; 0 is the executor's bound.
	DataTimeout time.Duration
	// Timed says that the passes of stages return when their device has done them, so that what calls take is what the
	// work takes. Without it, a device may only have been told what to do: a training waits where it must.
	Timed bool
}

// Sharding is what the replicas of a part divide instead of each having all of it. Results differ in the last bits at
// most.
type Sharding string

// The levels of ZeRO: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020.
const (
	ShardNone       Sharding = "none"
	ShardOptimizer  Sharding = "optimizer"  // ZeRO-1: what the optimizer keeps
	ShardGradients  Sharding = "gradients"  // ZeRO-2: that and the gradients
	ShardParameters Sharding = "parameters" // ZeRO-3: those and the parameters, which are gathered for each pass
)

// The orders of forward and backward passes that a [Stepper] knows.
const (
	OneForwardOneBackward = "1f1b"
	GPipe                 = "gpipe"
)

// Collective says how replicas and their parts do a whole step together. The zero value clips nothing.
type Collective struct {
	// Schedule is OneForwardOneBackward or GPipe; empty is the first.
	Schedule string
	// ClipNorm is EngineOptions.ClipNorm.
	ClipNorm float64
	// Timeout is how long one waits for the others before it takes them for lost; 0 is ten minutes.
	Timeout time.Duration
}

// Part is a subgraph on a device.
type Part struct {
	// Ops are the IDs of the probed graph's operations; nil is all, for a layout of one part.
	Ops []string
	// Device is where it runs, Replicas where it runs in the replicas from the second on; nil is there as well.
	Device   Device
	Replicas []Device
	// InFlight is how many micro-batches may be between their forward and backward pass, from 1.
	InFlight int
	// Recompute says that Stage.Recompute is called before every Backward, so that Forward need not keep activations.
	Recompute bool
}

// On is where the part runs in a replica, from 0.
func (p Part) On(replica int) Device {
	if replica == 0 || p.Replicas == nil {
		return p.Device
	}
	return p.Replicas[replica-1]
}

// Optimizers.
const (
	SGD      = "sgd"
	Momentum = "momentum"
	Adam     = "adam"
	AdamW    = "adamw"
)

// Optimizer says how gradients become updates; the formulas are those of torch.optim. The zero value is the model's own
// or, without one, Adam at 0.001.
type Optimizer struct {
	// Kind is one of those above.
	Kind string `json:"kind,omitempty"`
	// LearningRate is above 0; 0 is 0.001 for Adam and AdamW and 0.01 for the others.
	LearningRate float64 `json:"learning_rate,omitempty"`
	// Momentum is that of Momentum, from 0 to 1; 0 is 0.9.
	Momentum float64 `json:"momentum,omitempty"`
	// Beta1, Beta2 and Epsilon are Adam's; 0 is 0.9, 0.999 and 1e-8.
	Beta1   float64 `json:"beta1,omitempty"`
	Beta2   float64 `json:"beta2,omitempty"`
	Epsilon float64 `json:"epsilon,omitempty"`
	// WeightDecay is added to gradients, times the parameters; AdamW takes it off the parameters instead, and 0 is 0.01
	// there.
	WeightDecay float64 `json:"weight_decay,omitempty"`
}

// Message is what one part hands to others for one micro-batch. Only its executor knows what is in it; tensors need not
// leave their device or their shared memory.
type Message any

// Pipeline is a loaded split.
type Pipeline interface {
	// Stages are the loaded parts, in order.
	Stages() []Stage
	// Data describes the data.
	Data() Data
	// Batch returns the inputs and targets of a step, from 0. The same layout has the same batch for the same step,
	// whatever was asked before. It is called when no stage runs, and what it returned before is no longer used then.
	Batch(ctx context.Context, step int64) (Batch, error)
	// Write makes the trained model of exported parts, in the form that its users load: a state_dict for PyTorch. It may
	// write the same beside it in other forms, under the same name but for its end. It is called when no stage runs.
	Write(ctx context.Context, parts []string, path string) error
	// Close ends every stage. It is called once.
	Close() error
}

// Stepper is a pipeline that does whole steps, as one whose parts pass messages without the engine. Its stages do no
// single passes.
type Stepper interface {
	// Step trains on one batch. When it returns, nothing of it runs any more. After an error the pipeline is broken, and
	// what ran of it has ended: restore a checkpoint into a new one. The error wraps [ErrMissing] where somebody gives no
	// answer, and [ErrLoss] where the loss is not finite.
	Step(ctx context.Context, step int64) (StepReport, error)
}

var _ Stepper = (*Engine)(nil)

// Distributor is an executor that may have replicas. Its method is safe for concurrent use.
type Distributor interface {
	// Distributes refuses what is installed where it cannot train replicas.
	Distributes(ctx context.Context) error
}

// Exchanger is a [Distributor] that can measure what replicas send each other. Its method is safe for concurrent use.
type Exchanger interface {
	Distributor
	// Exchange measures it among ranks on these devices, two or more, one each, as long as nothing else runs there.
	Exchange(ctx context.Context, devices []Device) (Exchange, error)
}

// Exchange is what it costs that ranks exchange tensors, all at once. The zero value costs nothing.
type Exchange struct {
	// Ranks is among how many it was measured, from 2; 0 where it was not.
	Ranks int
	// AllReduce sums a tensor that each rank has, Gather collects one of which each has a piece, and Scatter sums one into
	// such pieces; the bytes are those of the whole tensor. Send takes a tensor from one rank to another.
	AllReduce, Gather, Scatter, Send Transfer
	// Step is what a step of replicas takes besides, in seconds, whatever their model is.
	Step float64
	// Hidden is the part of an exchange that passes beside computation, from 0 to 1: none where it takes the same cores.
	Hidden float64
	// Process is what the process of a rank holds besides [Probe.Base] once it has met others, Scratch how many bytes an
	// exchange takes for each of its tensor.
	Process quantity.Bytes
	Scratch float64
}

// Transfer is how long a tensor takes, in seconds: Fixed for any, and EachByte for each of its bytes.
type Transfer struct{ Fixed, EachByte float64 }

// At is the time of a tensor of so many bytes; 0 for none.
func (t Transfer) At(bytes float64) float64 {
	if bytes <= 0 {
		return 0
	}
	return t.Fixed + t.EachByte*bytes
}

// Examiner is a pipeline that can tell which tensor made the loss or the gradients of a step infinite or not numbers.
type Examiner interface {
	// Examine repeats the passes of a step whose update was not made, each micro-batch through all stages, and looks at
	// every tensor. The first that is not finite is found: its operation, its place in the user's file, forward or
	// backward, and the micro-batch. Nothing found is nil. It is called when no stage runs, and afterwards the pipeline
	// can only be closed.
	Examine(ctx context.Context, step int64) (found, err error)
}

// Data describes what a pipeline is trained on.
type Data struct {
	// Samples is how many there are; 0 where the data does not say.
	Samples int
	// StepsPerEpoch is how many batches one pass over the data has; 0 where the data does not say.
	StepsPerEpoch int64
	// Model is Probe.Model.
	Model string
	// Validates says that there are validation data, and that the pipeline is an [Evaluator].
	Validates bool
}

// Evaluator is a [Pipeline] that can look at validation data.
type Evaluator interface {
	// Evaluate runs the model over all validation data, in the modes that it has for evaluation and without gradients. It
	// is called when no stage runs, and no step after it is another for it: modes, buffers and generators are as before. A
	// model's scheduler may go by what it shows, as ReduceLROnPlateau does.
	// Without validation data it returns [ErrNoValidation]. When ctx ends it returns soon, and the pipeline can go on as
	// if it had not been called.
	Evaluate(ctx context.Context) (Evaluation, error)
}

// Evaluation is what a model makes of validation data.
type Evaluation struct {
	// Samples is how many there are.
	Samples int
	// Loss is the mean of the samples' losses, each piece of the data weighed by its samples; Metrics are those that the
	// user computes of outputs and targets, by name, and means, too.
	Loss    float64
	Metrics map[string]float64
}

// Batch is the inputs and targets of one step.
type Batch struct {
	// MicroBatches hold, for each micro-batch, what stages read of it.
	MicroBatches []Message
	// Samples counts those of each micro-batch.
	Samples []int
	// Tokens is how many all of them have together; 0 where they are no sequences of tokens.
	Tokens int
}

// Stage is a loaded part. One goroutine at a time calls its methods, except what Export returns.
type Stage interface {
	// Forward computes a micro-batch, counted from 0 in each step. from holds, by the number of the stage that made them,
	// the messages of earlier stages. The last stage computes the loss, too, weighed by the micro-batch's share of the
	// batch's samples; its message may be nil.
	Forward(ctx context.Context, step int64, microBatch int, batch Message, from []Message) (Message, error)
	// Recompute repeats Forward from the inputs that it kept.
	Recompute(ctx context.Context, microBatch int) error
	// Backward computes the gradients of a micro-batch and adds those of the parameters up in the order of calls.
	// cotangents holds, by the number of the stage that made them, the messages of later stages to this one; the answer
	// holds those to earlier stages by their number, nil where nothing was read. The cotangents of a tensor are added up
	// from the last stage that read it to the first.
	Backward(ctx context.Context, microBatch int, cotangents []Message) ([]Message, error)
	// GradientSquares is the sum of the squares of the gradients, without the scale of the loss, for clipping and to find
	// those that are not finite.
	GradientSquares(ctx context.Context) (float64, error)
	// Step applies the gradients, each multiplied by scale, and forgets them. A scale of 0 says that gradients of some
	// stage overflowed in Float16: they are forgotten, nothing else changes but the scale of the loss, and that is the
	// same in all stages. It returns the loss of the step where this is the last stage, else 0.
	Step(ctx context.Context, scale float64) (loss float64, err error)
	// Export takes a copy of the parameters, buffers and optimizer state; training may go on when it returns. wait, which
	// is called once and from any goroutine, returns when the copy is in the file, in the format of package state, and on
	// the disk.
	Export(ctx context.Context, path string) (wait func() error, err error)
	// Import replaces them by those in files of a split that need not be this one.
	Import(ctx context.Context, paths []string) error
	// Usage tells what the stage holds.
	Usage(ctx context.Context) (Usage, error)
}

// Usage is what a stage holds on its device.
type Usage struct {
	// Parameters, Gradients, Optimizer and Buffers are sizes of tensors.
	Parameters, Gradients, Optimizer, Buffers quantity.Bytes
	// Peak is the most that was held since the stage was loaded, activations and all else included, and Probe.Base left
	// out; 0 where that cannot be measured for a part. Of a part on a CUDA device, it is what its allocator held there,
	// with what that kept for later: [Device.Memory] bounds that.
	Peak quantity.Bytes
}
