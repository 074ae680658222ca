package train

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/gang"
	"github.com/spillway-ml/spillway/workers/training"
)

// gangPatience is how long the other hosts of a gang wait for the first one: it begins when they do, and unpacks the
// same files.
const gangPatience = 5 * time.Minute

// errOneHost is about an executor that trains on one host alone.
var errOneHost = errors.New("what trains this model trains on one host; leave --hosts out")

// inGang has the other hosts of a gang serve this training, and tells the job what they have, until release. Planned
// gives those back that the plan does not use. Without a gang nothing changes.
func inGang(
	ctx context.Context, in *gang.Gang, flags *trainFlags, job *training.Job,
) (held context.Context, planned training.Observer, release func(numbers ...int), err error) {
	if in == nil {
		return ctx, planned, func(...int) {}, nil
	}
	executor, can := job.Executor.(exec.Ganger)
	if !can {
		return nil, planned, nil, errOneHost
	}
	hosts := make([]exec.Host, len(in.Hosts))
	for i, host := range in.Hosts {
		hosts[i] = exec.Host{Name: host.Name, Address: host.Address}
		if i > 0 {
			hosts[i].Dial = func(ctx context.Context) (net.Conn, error) { return in.Dial(ctx, i) }
		}
	}
	held, found, release, err := executor.Hold(ctx, hosts)
	if err != nil {
		return nil, planned, nil, err
	}
	for i, host := range in.Hosts {
		job.Hosts = append(job.Hosts, training.Host{Name: host.Name, Devices: found[i].Devices})
	}
	job.EveryHost = flags.hosts != autoHosts
	planned.Planned = func(plan predictor.Training) {
		for i, host := range in.Hosts {
			if i > 0 && !slices.ContainsFunc(plan.Hosts, func(h predictor.TrainingHost) bool { return h.Name == host.Name }) {
				release(i)
			}
		}
	}
	return held, planned, release, nil
}

// serveGang serves the training of the first host of a gang, as another of its hosts, until that is over.
func serveGang(ctx context.Context, t *tool.Tool, model modelFile, flags *trainFlags, in *gang.Gang) (err error) {
	view := newTrainView(t, flags)
	executor, err := t.Deps.Executor(model.path+":"+model.function, flags.data, flags.validation, view.logger())
	if err != nil {
		return err
	}
	serving, can := executor.(exec.Ganger)
	if !can {
		return errOneHost
	}
	visible, _ := t.Deps.Environment(training.VisibleGPUs)
	devices := training.Assigned(executor, visible)
	if surveyor, surveys := executor.(exec.Surveyor); surveys && len(devices) > 0 {
		seen, err := surveyor.Survey(ctx, devices)
		if err != nil {
			return err
		}
		for i := range devices {
			devices[i].Class = seen[i].Name
		}
	}
	if len(devices) == 0 {
		if devices, err = training.Devices(); err != nil {
			return err
		}
	}
	directory, err := os.MkdirTemp("", "spillway-gang-")
	if err != nil {
		return fmt.Errorf("make a directory for files on their way: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	own := in.Hosts[in.Number]
	view.note("host %s has %s for the training that host %s leads", own.Name, display.Count(len(devices), "device"),
		in.Hosts[0].Name)
	return serving.Serve(ctx, exec.ServeOptions{
		Listener: in.Listener, Address: own.Address, Devices: devices, Directory: directory, Patience: gangPatience,
	})
}
