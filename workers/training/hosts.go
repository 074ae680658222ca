package training

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
)

// A gang's hosts are alike: as many devices are used of each, and of one class, so that a plan of one is that of all.
// Replicas are divided among them, each with all of its parts on one host; or the parts of one replica are, which is
// for models that do not fit on a host. What they send each other is measured between the hosts.

// onHosts returns the devices of each host of the gang, this process's first: as many of each. The error says why they
// cannot train together.
func (j Job) onHosts(devices deviceSet) ([]deviceSet, error) {
	all := []deviceSet{devices}
	least := len(devices.all)
	for i, host := range j.Hosts[1:] {
		set := deviceSet{own: devices.own, seen: devices.seen}
		for _, d := range host.Devices {
			d.Host, d.ID = i+1, host.Name+"/"+d.ID
			set.all = append(set.all, d)
		}
		if len(set.all) == 0 {
			return nil, fmt.Errorf("host %s of the gang has no devices", host.Name)
		}
		least = min(least, len(set.all))
		all = append(all, set)
	}
	for i := range all {
		all[i].all = all[i].all[:least]
		if !slices.EqualFunc(all[i].all, all[0].all, func(a, b exec.Device) bool {
			return classOf(a) == classOf(b) || a.Kind != exec.CUDA && b.Kind != exec.CUDA
		}) {
			return nil, refused("host %s has other devices than %s; train on hosts that are alike, with --gpu-class where "+
				"there are GPUs of several models", j.Hosts[i].Name, j.Hosts[0].Name)
		}
		for k := range all[i].all { // threads are as wide as on the first
			all[i].all[k].Threads = all[0].all[k].Threads
		}
	}
	return all, nil
}

// acrossHosts are the numbers of replicas and parts that are planned for all hosts of a gang.
func (j Job) acrossHosts(devices deviceSet) (ways []way, err error) {
	hosts, err := j.onHosts(devices)
	if err != nil {
		return nil, err
	}
	count := len(hosts)
	for _, each := range partNumbers(0, len(hosts[0].all)) {
		replicas := each * count
		if j.Replicas != AutoReplicas && replicas != j.replicas() || j.Batch < replicas*max(j.MicroBatches, 1) ||
			len(hosts[0].all)/each < max(j.Partitions, 1) {
			continue
		}
		w := way{processors: len(hosts[0].all), hosts: count}
		for _, host := range hosts {
			groups, shared, err := host.groups(each, j.Partitions)
			if err != nil {
				return nil, err
			}
			w.groups, w.shared = append(w.groups, groups...), w.shared || shared
		}
		ways = append(ways, w)
	}
	if j.replicas() == 1 && (j.Partitions == 0 || j.Partitions%count == 0 && j.Partitions/count <= len(hosts[0].all)) {
		set := deviceSet{own: devices.own, seen: devices.seen, spans: hosts}
		for _, host := range hosts {
			set.all = append(set.all, host.all...)
		}
		ways = append(ways, way{groups: []deviceSet{set}, processors: len(hosts[0].all), hosts: count})
	}
	if len(ways) == 0 && j.EveryHost {
		return nil, refused("%d replicas of %d parts cannot be divided among %d hosts with %d devices each; choose a number "+
			"of replicas that hosts divide, or leave it to be chosen", j.replicas(), max(j.Partitions, 1), count,
			len(hosts[0].all))
	}
	return ways, nil
}

// errEveryHost is why a plan that must use all hosts has none.
var errEveryHost = errors.New("leave the number of hosts out, or write auto")

// onThisHost leaves the ways of one replica on this host; the error says why there is none.
func onThisHost(ways []way, why string) ([]way, error) {
	left := slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return w.replicas() > 1 || w.hosts > 1 })
	if len(left) == 0 {
		return nil, refused("the model cannot be trained on several hosts: %s; %v", why, errEveryHost)
	}
	return left, nil
}

// is reports whether a candidate is of so many replicas on so many hosts.
func (w way) is(replicas, hosts int) bool {
	return w.replicas() == replicas && max(w.hosts, 1) == max(hosts, 1)
}

// wayOf finds the way of a candidate; -1 where there is none.
func wayOf(ways []way, replicas, hosts int) int {
	return slices.IndexFunc(ways, func(w way) bool { return w.is(replicas, hosts) })
}

// ranksOn are the hosts on which a layout has ranks, and how many each; nil without a gang.
func (j Job) ranksOn(l exec.Layout) []predictor.TrainingHost {
	if len(j.Hosts) == 0 {
		return nil
	}
	counts := make([]int, len(j.Hosts))
	for _, part := range l.Parts {
		for r := range max(l.Replicas, 1) {
			if at := part.On(r).Host; at < len(counts) {
				counts[at]++
			}
		}
	}
	var all []predictor.TrainingHost
	for i, host := range j.Hosts {
		if counts[i] > 0 {
			all = append(all, predictor.TrainingHost{Name: host.Name, Ranks: counts[i]})
		}
	}
	return all
}
