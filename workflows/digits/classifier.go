package digits

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	spillway "github.com/spillway-ml/spillway/workflows"
)

// Weights are the parameters of a trained network. The zero value is none.
type Weights struct {
	// Side is the side in pixels of the images that it classifies.
	Side int
	// Parameters holds all weights and biases, layer by layer.
	Parameters []float32
}

// MarshalBinary encodes the weights as one artifact.
func (w Weights) MarshalBinary() ([]byte, error) {
	e := newEncoder("DGW1", 16+4*len(w.Parameters))
	e.integer(w.Side)
	e.floats(w.Parameters)
	return e.data, nil
}

// UnmarshalBinary decodes what MarshalBinary wrote and refuses all else.
func (w *Weights) UnmarshalBinary(data []byte) error {
	d := newDecoder("DGW1", data)
	w.Side, w.Parameters = d.integer(), d.floats()
	if err := d.close(); err != nil {
		return err
	}
	if err := checkSide(w.Side); err != nil {
		return err
	}
	if want := (network{w.Side}).size(); len(w.Parameters) != want {
		return fmt.Errorf("%d parameters for images of side %d, expected %d: %w", len(w.Parameters), w.Side, want,
			errEncoding)
	}
	return nil
}

// classify returns ten probabilities for each image of span, unchanged.
func classify(ctx context.Context, e *engine, parameters []float32, d Dataset, span Span) ([]float32, error) {
	pixels := make([]float32, span.Count*d.Side*d.Side)
	for i := range span.Count {
		plain(d.image(span.First+i), pixels[i*d.Side*d.Side:])
	}
	return inBatches(ctx, e, parameters, pixels)
}

// classifyViews returns ten probabilities for each image of span: the mean over so many scoring views. Batches go on
// from one image to the next: an image in one view would else be a batch of its own, most of it paper.
func classifyViews(
	ctx context.Context, e *engine, parameters []float32, d Dataset, span Span, count int,
) ([]float32, error) {
	size := d.Side * d.Side
	views := scoringViews(d.Side, count)
	means := make([]float32, span.Count*classes)
	pixels := make([]float32, 0, batch*size)
	first, all := 0, span.Count*len(views) // of pixels; views are numbered image by image
	for n := range all {
		pixels = pixels[:len(pixels)+size]
		views[n%len(views)].apply(d.image(span.First+n/len(views)), d.Side, pixels[len(pixels)-size:])
		if len(pixels) < batch*size && n+1 < all {
			continue
		}
		seen, err := inBatches(ctx, e, parameters, pixels)
		if err != nil {
			return nil, err
		}
		for j, p := range seen {
			means[(first+j/classes)/len(views)*classes+j%classes] += p / float32(len(views))
		}
		first, pixels = n+1, pixels[:0]
	}
	return means, nil
}

// inBatches classifies any number of images, always batch at a time, so that one compiled graph serves all; the last
// batch is filled with paper, and what comes of that is dropped.
func inBatches(ctx context.Context, e *engine, parameters, pixels []float32) ([]float32, error) {
	size := e.network.side * e.network.side
	count := len(pixels) / size
	probabilities := make([]float32, 0, count*classes)
	for ; len(pixels) > 0; pixels = pixels[min(len(pixels), batch*size):] {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		some := pixels[:min(len(pixels), batch*size)]
		if len(some) < batch*size {
			some = append(make([]float32, 0, batch*size), some...)[:batch*size]
		}
		out, err := e.probabilities(parameters, some)
		if err != nil {
			return nil, err
		}
		probabilities = append(probabilities, out[:min(len(out), count*classes-len(probabilities))]...)
	}
	return probabilities, nil
}

// kept is what a process keeps from one attempt to the next: it is reused, and compiling a graph and decoding an
// artifact again for each of hundreds of shards would cost more than the shortest of them. An entry is found by the
// artifact's digest, so it cannot be out of date.
var kept struct {
	models   cache[*model]
	datasets cache[Dataset]
}

// model is a trained network, ready to classify.
type model struct {
	mutex      sync.Mutex // guards engine, which serves one caller at a time
	engine     *engine
	parameters []float32
}

// use calls f with the model's network while no other caller has it.
func (m *model) use(f func(*engine, []float32) error) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return f(m.engine, m.parameters)
}

// modelOf returns the model of an artifact, compiled for the cores that there are now. A model that falls out of the
// cache may still be in use, so it is not closed: it is ordinary memory, which the garbage collector takes back.
func modelOf(ctx context.Context, weights spillway.Artifact[Weights]) (*model, error) {
	return kept.models.get(fmt.Sprintf("%s/%d", weights.Digest, runtime.GOMAXPROCS(0)), func() (*model, error) {
		w, err := weights.Get(ctx)
		if err != nil {
			return nil, err
		}
		e, err := newEngine(network{w.Side})
		if err != nil {
			return nil, err
		}
		return &model{engine: e, parameters: w.Parameters}, nil
	})
}

// datasetOf returns the images of an artifact. They are shared: nobody may change them.
func datasetOf(ctx context.Context, images spillway.Artifact[Dataset]) (Dataset, error) {
	return kept.datasets.get(images.Digest, func() (Dataset, error) { return images.Get(ctx) })
}

// cacheSize is how many values a cache keeps: those of the run and of one that overlaps it.
const cacheSize = 2

// cache keeps the values that were used last. The zero value is empty and ready; callers may be concurrent.
type cache[T any] struct {
	mutex   sync.Mutex
	entries []entry[T] // the one used last comes first
}

type entry[T any] struct {
	key   string
	value T
}

// get returns the value of key and makes it where it is not kept. Callers wait for one another, so that none makes a
// value twice.
func (c *cache[T]) get(key string, produce func() (T, error)) (T, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for i, e := range c.entries {
		if e.key == key {
			copy(c.entries[1:i+1], c.entries[:i])
			c.entries[0] = e
			return e.value, nil
		}
	}
	value, err := produce()
	if err != nil {
		return value, err
	}
	c.entries = append([]entry[T]{{key, value}}, c.entries[:min(len(c.entries), cacheSize-1)]...)
	return value, nil
}
