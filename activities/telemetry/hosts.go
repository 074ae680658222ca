package telemetry

import (
	"math"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// hostSilence is after how long, by the times of the stream, a host that nobody held any more has no series.
const hostSilence = 5 * time.Minute

// DeviceReading is what one GPU did over the last period of whoever reads it.
type DeviceReading struct {
	// GPU is the index of the device on its host, UUID its own name ("GPU-604ac76c-..."), Device what NVIDIA's exporter
	// calls it, which is by its index, too ("nvidia0"). Bus is its place on the PCI bus ("00000000:3B:00.0").
	GPU, UUID, Device, Bus string
	// Profile is that of a MIG instance on it ("3g.20gb"), Instance the number of its GPU instance; both are empty for a
	// whole GPU.
	Profile, Instance string
	// Model is the product ("NVIDIA H200"), Host the host's name.
	Model, Host string
	// Busy is the share of the time in which a kernel was running, 0 to 1; EngineActive that in which the graphics or
	// compute engine was. They are negative where nobody counts them.
	Busy, EngineActive float64
	// Watts is what it draws, Uncorrected how many errors of its memory could not be corrected since its driver was
	// loaded; negative where nobody tells.
	Watts       float64
	Uncorrected int64
	// Used and Free are its memory.
	Used, Free quantity.Bytes
}

// SetGPUs shows what the GPUs of this process's own host did, as its agent tells it. One that cannot be used, or is not
// told of any more, has no series. How busy the engines of a GPU were, NVIDIA's exporter alone knows.
func (m *Metrics) SetGPUs(host predictor.Host) {
	m.mu.Lock()
	gone := m.shown
	m.shown = map[string]bool{}
	for _, gpu := range host.GPUs {
		if gpu.Wrong == "" {
			m.shown[gpu.UUID] = true
			delete(gone, gpu.UUID)
		}
	}
	m.mu.Unlock()
	for uuid := range gone {
		for _, gauge := range m.ofDevices() {
			gauge.DeletePartialMatch(prometheus.Labels{"UUID": label(uuid)})
		}
	}
	for _, gpu := range host.GPUs {
		if gpu.Wrong != "" {
			continue
		}
		index, instance := strconv.Itoa(gpu.Index), ""
		if gpu.Instance >= 0 {
			instance = strconv.Itoa(gpu.GPUInstance)
		}
		m.SetDevice(DeviceReading{
			GPU: index, UUID: gpu.UUID, Device: "nvidia" + index, Bus: gpu.Bus, Profile: gpu.Profile,
			Instance: instance, Model: gpu.Name, Host: host.ID,
			Busy: gpu.Busy, EngineActive: -1, Watts: gpu.Watts, Uncorrected: gpu.Uncorrected,
			Used: gpu.Used, Free: max(gpu.Memory-gpu.Used, 0),
		})
	}
}

// ofDevices are the gauges that have a series for every device.
func (m *Metrics) ofDevices() []*prometheus.GaugeVec {
	return []*prometheus.GaugeVec{m.utilisation, m.graphics, m.used, m.free, m.watts, m.uncorrected}
}

// SetDevice shows what one GPU did. What is not known any more has no series.
func (m *Metrics) SetDevice(reading DeviceReading) {
	const percent = 100
	values := []string{
		label(reading.GPU), label(reading.UUID), label(reading.Bus), label(reading.Device), label(reading.Model),
		label(reading.Profile), label(reading.Instance), label(reading.Host),
	}
	share := func(gauge *prometheus.GaugeVec, value, unit float64) {
		if value >= 0 && !math.IsInf(value, 1) {
			gauge.WithLabelValues(values...).Set(value * unit)
			return
		}
		gauge.DeleteLabelValues(values...)
	}
	share(m.utilisation, reading.Busy, percent)
	share(m.graphics, reading.EngineActive, 1)
	share(m.watts, reading.Watts, 1)
	share(m.uncorrected, float64(reading.Uncorrected), 1)
	share(m.used, float64(reading.Used), 1/float64(quantity.MiB))
	share(m.free, float64(reading.Free), 1/float64(quantity.MiB))
}

func (m *Metrics) followHostHeld(event predictor.HostHeld) {
	host := label(event.Host)
	if _, known := m.hosts[host]; !known && len(m.hosts) >= maxHosts {
		host = other
	}
	if m.hosts[host].At.Before(event.At) {
		event.Host = host
		m.hosts[host] = event
	}
	m.price.WithLabelValues(host).Set(event.PricePerHour.USD())
	m.hostCPU.WithLabelValues(host).Set(event.Capacity.CPU.Cores())
	m.hostMemory.WithLabelValues(host).Set(float64(event.Capacity.Memory))
	m.gpus.WithLabelValues(host).Set(event.Capacity.GPU.Cores())
}

// forgetHosts drops the series of hosts that were not heard of for a while: a gauge would show for ever what is not
// there any more.
func (m *Metrics) forgetHosts(now time.Time) {
	if now.Sub(m.swept) < hostSilence/10 {
		return
	}
	m.swept = now
	for host, held := range m.hosts {
		if now.Sub(held.At) <= hostSilence {
			continue
		}
		delete(m.hosts, host)
		for _, gauge := range []*prometheus.GaugeVec{m.price, m.hostCPU, m.hostMemory, m.gpus} {
			gauge.DeleteLabelValues(host)
		}
		for _, gauge := range m.ofDevices() {
			gauge.DeletePartialMatch(prometheus.Labels{"Hostname": host})
		}
	}
}
