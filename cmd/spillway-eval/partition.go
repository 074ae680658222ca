package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/partition"
)

func partitions() verb {
	return verb{
		name:    "partition",
		summary: "models divided among devices: load, latency and step time against the plans of others",
		explain: `
Each recorded graph is planned as its file says, and the plans of others are measured in the same way.

  max_load       load of the busiest device of a stream of batches, ms;
                 ours is free to give a device parts that are apart
  makespan       time of one batch from the first operation to the last, ms, in our simulator
  block_latency  the same where each device runs each of its contiguous parts as one call, ms:
                 the model of the greedy baseline
  exact_ratio    20 parts of 12 neighbouring operations on two accelerators: makespan over that
                 of the best of all placements, the worst of them
  step_time      time of a synchronous training step under 1F1B, s
  batch_time     time between two batches of PipeDream's asynchronous pipeline by its own cost, s
  plan_ms        how long planning took on this machine

Sets (a folder that is absent is skipped, with a note):

  dnn_partitioning    throughput-inputs, latency-inputs, human-experts and ORACLE.csv
  pipedream_profiles  *.graph.txt, for 4 and 16 devices with 1.25 GB/s between them
  dapple_profiles     *.txt, 32 micro-batches of the profile's batch, for 16 devices with 1.25 GB/s
  piper               *.json, devices, memory and bandwidth as the file says`,
		define: func(*flag.FlagSet) func(context.Context, common) error { return evaluatePartitions },
	}
}

// graphSet is a folder of recorded graphs.
type graphSet struct {
	folder string
	// evaluate is given the folder.
	evaluate func(ctx context.Context, folder string, into *report) error
}

func evaluatePartitions(ctx context.Context, with common) error {
	found := false
	for _, set := range []graphSet{
		{"dnn_partitioning", evaluatePlacements},
		{"pipedream_profiles", evaluatePipeDream},
		{"dapple_profiles", evaluateDAPPLE},
		{"piper", evaluatePiper},
	} {
		folder := filepath.Join(with.data, set.folder)
		if _, err := os.Stat(folder); errors.Is(err, fs.ErrNotExist) {
			_, _ = fmt.Fprintf(with.notes, "spillway-eval partition: %s is absent from %s: skipped\n", set.folder, with.data)
			continue
		}
		found = true
		if err := set.evaluate(ctx, folder, with.report); err != nil {
			return fmt.Errorf("%s: %w", set.folder, err)
		}
	}
	if !found {
		return fmt.Errorf("%s holds none of the sets: name the folder that contains dnn_partitioning, pipedream_profiles, "+
			"dapple_profiles or piper",
			with.data)
	}
	return nil
}

// readGraph reads a file with one of the readers of package graph.
func readGraph[T any](name string, read func(*os.File) (T, error)) (T, error) {
	file, err := os.Open(name)
	if err != nil {
		var none T
		return none, fmt.Errorf("open a graph: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	value, err := read(file)
	if err != nil {
		return value, fmt.Errorf("%s: %w", name, err)
	}
	return value, nil
}

// workload is a graph with the machines that its file names.
type workload struct {
	graph  graph.Graph
	limits graph.Limits
}

func readWorkload(name string) (workload, error) {
	return readGraph(name, func(f *os.File) (workload, error) {
		g, limits, err := graph.ReadDNNPartitioning(f)
		return workload{g, limits}, err
	})
}

// problem has the accelerators and CPUs of the file around the memory of their host.
func (w workload) problem(objective partition.Objective) partition.Problem {
	p := partition.Problem{Graph: w.graph, Objective: objective, Links: partition.Links{ThroughHost: true}}
	for i := range w.limits.Accelerators {
		p.Devices = append(p.Devices, partition.Device{
			ID: "accelerator " + strconv.Itoa(i), Class: graph.Accelerator,
			Memory: w.limits.Memory,
		})
	}
	for i := range w.limits.CPUs {
		p.Devices = append(p.Devices, partition.Device{ID: "cpu " + strconv.Itoa(i), Class: graph.CPU, Host: true})
	}
	return p
}

// timed plans and tells how long that took.
func timed(plan func(partition.Problem) (partition.Plan, error), p partition.Problem) (partition.Plan, float64, error) {
	start := time.Now()
	made, err := plan(p)
	return made, float64(time.Since(start)) / float64(time.Millisecond), err
}

const milliseconds = 1e3

func evaluatePlacements(ctx context.Context, folder string, into *report) error {
	oracle, err := readOracle(filepath.Join(folder, "ORACLE.csv"))
	if err != nil {
		return err
	}
	for _, kind := range []string{"throughput-inputs", "latency-inputs"} {
		names, err := filepath.Glob(filepath.Join(folder, kind, "*", "*.json"))
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			w, err := readWorkload(name)
			if err != nil {
				return err
			}
			instance := path.Join(filepath.Base(filepath.Dir(name)), strings.TrimSuffix(filepath.Base(name), ".json"))
			if kind == "latency-inputs" {
				err = errors.Join(w.latency(instance, into), w.exact(instance, into))
			} else {
				err = w.throughput(instance, expertOf(folder, instance), oracle[instance], into)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", instance, err)
			}
		}
	}
	return nil
}

// readOracle reads the loads that the authors' own programs found, by instance and name.
func readOracle(name string) (map[string]map[string]float64, error) {
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the oracle: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	columns := map[string]string{
		"optimum_contiguous_max_load": "oracle", "pipedream_baseline": "pipedream", "single_device": "one_device",
		"human_expert": "expert",
	}
	all := map[string]map[string]float64{}
	for i, row := range rows {
		if i == 0 {
			continue
		}
		values := map[string]float64{}
		instance := ""
		for c, header := range rows[0] {
			if header == "instance" {
				instance = row[c]
			}
			if short := columns[header]; short != "" && row[c] != "" {
				if values[short], err = strconv.ParseFloat(row[c], 64); err != nil {
					return nil, fmt.Errorf("read %s: row %d: %s: %w", name, i+1, header, err)
				}
			}
		}
		all[instance] = values
	}
	return all, nil
}

// expertOf is where the split of a person for an instance may be; for training, that for inference serves as well.
func expertOf(folder, instance string) []string {
	base := filepath.Join(folder, "human-experts", path.Base(instance))
	return []string{base + "_expert.json", strings.Replace(base, "_training", "_inference", 1) + "_expert.json"}
}

// readExpert returns the device of each operation in a person's split; what it leaves out goes with its colour. nil
// without a file.
func (w workload) readExpert(names []string) ([]int, error) {
	var text []byte
	for _, name := range names {
		var err error
		if text, err = os.ReadFile(name); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read a split: %w", err)
		}
	}
	if text == nil {
		return nil, nil
	}
	type machine struct {
		Nodes []int64 `json:"nodes"`
	}
	var split struct {
		Accelerators []machine `json:"fpgas"`
		CPUs         []machine `json:"cpus"`
	}
	if err := json.Unmarshal(text, &split); err != nil {
		return nil, fmt.Errorf("read a split: %w", err)
	}
	at := map[string]int{}
	for i, m := range slices.Concat(split.Accelerators, split.CPUs) {
		device := i
		if i >= len(split.Accelerators) {
			device = i - len(split.Accelerators) + w.limits.Accelerators
		}
		for _, node := range m.Nodes {
			at[strconv.FormatInt(node, 10)] = device
		}
	}
	colours := map[string]int{}
	for _, op := range w.graph.Ops {
		if device, named := at[op.ID]; named && op.Colour != "" {
			colours[op.Colour] = device
		}
	}
	assignment := make([]int, len(w.graph.Ops))
	for i, op := range w.graph.Ops {
		device, named := at[op.ID]
		if !named {
			device, named = colours[op.Colour]
		}
		if !named {
			return nil, nil // a split of another graph
		}
		assignment[i] = device
	}
	return assignment, nil
}

func (w workload) throughput(instance string, experts []string, oracle map[string]float64, into *report) error {
	p := w.problem(partition.Throughput)
	loads, took := map[string]float64{}, map[string]float64{}
	maps.Copy(loads, oracle)
	for name, method := range map[string]func(partition.Problem) (partition.Plan, error){
		"contiguous": partition.Contiguous, "linearised": partition.Linearised, "even_split": partition.EvenSplit,
		"greedy": partition.GreedyFill,
		ours:     partition.Solve,
	} {
		plan, milli, err := timed(method, p)
		if err != nil && !errors.Is(err, partition.ErrUnfit) {
			return err
		}
		if err == nil {
			loads[name], took[name] = float64(plan.StepTime)*milliseconds, milli
			loads["lower_bound"] = float64(plan.LowerBound) * milliseconds
		}
	}
	expert, err := w.readExpert(experts)
	if err != nil {
		return err
	}
	if expert != nil {
		plan, err := partition.Evaluate(p, expert)
		if err != nil {
			return fmt.Errorf("the expert's split: %w", err)
		}
		loads["expert_here"] = float64(plan.StepTime) * milliseconds
	}
	into.add(beside("throughput "+instance, "max_load", loads, len(w.graph.Ops)))
	into.add(beside("throughput "+instance, "plan_ms", took, len(w.graph.Ops)))
	return nil
}

// beside makes a figure of milliseconds by name, one of which is ours.
func beside(instance, metric string, values map[string]float64, n int) figure {
	f := figure{
		Eval: "partition", Case: instance, Metric: metric, Unit: "ms", Ours: values[ours],
		Baselines: map[string]float64{}, N: n,
	}
	f.Set = "dnn_partitioning"
	for name, value := range values {
		if name != ours {
			f.Baselines[name] = value
		}
	}
	return f
}

func (w workload) latency(instance string, into *report) error {
	p := w.problem(partition.Latency)
	spans, blocks, took := map[string]float64{}, map[string]float64{}, map[string]float64{}
	for name, method := range map[string]func(partition.Problem) (partition.Plan, error){
		"m_sct": partition.SmallCommunication, "m_etf": partition.EarliestTask, "m_topo": partition.TopologicalFill,
		"greedy": partition.GreedyFill,
		ours:     partition.Solve,
	} {
		plan, milli, err := timed(method, p)
		if err != nil && !errors.Is(err, partition.ErrUnfit) {
			return err
		}
		if err != nil {
			continue
		}
		spans[name], took[name] = float64(plan.StepTime)*milliseconds, milli
		blocks[name] = w.blockLatency(plan.Assignment) * milliseconds
		spans["lower_bound"] = float64(plan.LowerBound) * milliseconds
	}
	into.add(beside("latency "+instance, "makespan", spans, len(w.graph.Ops)))
	into.add(beside("latency "+instance, "block_latency", blocks, len(w.graph.Ops)))
	into.add(beside("latency "+instance, "plan_ms", took, len(w.graph.Ops)))
	return nil
}

// equalDevices are accelerators without a limit of memory, unless one is given.
func equalDevices(n int, memory quantity.Bytes) []partition.Device {
	devices := make([]partition.Device, n)
	for i := range devices {
		devices[i] = partition.Device{ID: "accelerator " + strconv.Itoa(i), Class: graph.Accelerator, Memory: memory}
	}
	return devices
}

// plainMomentum is what single precision and momentum keep of a parameter, in bytes.
func plainMomentum() partition.Memory { return partition.Memory{Weight: 4, Gradient: 4, Optimizer: 4} }
