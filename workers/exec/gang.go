package exec

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Host is a host of a gang, as the first of them sees it.
type Host struct {
	// Name is the host's, for people.
	Name string
	// Address is where ranks on other hosts reach those of this one: an IP address of an interface of it.
	Address string
	// Dial connects to what serves there: see [Ganger]. Nil for the first host, which is this process's.
	Dial func(ctx context.Context) (net.Conn, error)
}

// HostHas is what a host of a gang has for a training.
type HostHas struct {
	// Devices are its own, with the number of the host in the gang.
	Devices []Device
	// Memory is what the host can give to processes; 0 where that is not known.
	Memory quantity.Bytes
}

// Ganger is a [Distributor] whose parts may be on several hosts: layouts with devices of another [Device.Host].
type Ganger interface {
	Distributor
	// Hold has the other hosts of a gang serve, whose first is this process's, and returns what they have by their number;
	// of the first, nothing. Release lets go of the hosts with these numbers, on which nothing is loaded any more, and of
	// all where none is named. The context ends with ctx, when all are let go of, and with the cause when one is lost. It
	// is called once, before anything is loaded.
	Hold(ctx context.Context, hosts []Host) (
		held context.Context, found []HostHas, release func(numbers ...int), err error)
	// Serve starts processes of the executor's model for the first host of a gang until that lets go, which is the end:
	// nil, or ErrLeft where it never came. The files of the model and the data are those of this executor, whatever their
	// paths are there.
	Serve(ctx context.Context, options ServeOptions) error
}

// ServeOptions say what a host of a gang serves. All fields are required but Memory.
type ServeOptions struct {
	// Listener takes the connections of the first host: whoever connects runs code here, so it lets nobody else in.
	Listener net.Listener
	// Address is where ranks of other hosts reach those of this one.
	Address string
	// Devices are those of this host; Memory is what it can give, 0 where that is not known.
	Devices []Device
	Memory  quantity.Bytes
	// Directory is an empty one for files on their way.
	Directory string
	// Patience is how long the first host may take until it connects.
	Patience time.Duration
}

// ErrLeft says that the first host of a gang did not come.
var ErrLeft = errors.New("the first host of the gang did not come")
