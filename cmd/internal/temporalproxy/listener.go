package temporalproxy

import (
	"errors"
	"net"
	"os"
	"sync"
)

// listener is the socket of a proxy: it accepts connections of one process.
type listener struct {
	net.Listener

	target  string        // as gRPC names it
	private string        // the directory that the socket lies in; empty when it has no file
	refused func(pid int) // called for each connection of another process

	pid      int           // that may come in; written before admitted is closed
	admitted chan struct{} // closed by admit
	closed   chan struct{}
	close    func() error
}

func newListener(of net.Listener, target, private string) *listener {
	l := &listener{
		Listener: of, target: target, private: private, refused: func(int) {}, admitted: make(chan struct{}),
		closed: make(chan struct{}),
	}
	l.close = sync.OnceValue(func() error {
		close(l.closed)
		err := l.Listener.Close()
		if private != "" {
			err = errors.Join(err, os.RemoveAll(private))
		}
		return err
	})
	return l
}

// admit lets the process in.
func (l *listener) admit(pid int) {
	l.pid = pid
	close(l.admitted)
}

// Accept implements net.Listener. It ends the connections of other processes.
func (l *listener) Accept() (net.Conn, error) {
	for {
		connection, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case <-l.admitted:
		case <-l.closed:
			return nil, errors.Join(net.ErrClosed, connection.Close())
		}
		pid, known := peer(connection)
		if !known || pid == l.pid {
			return connection, nil
		}
		_ = connection.Close() // of somebody who has no business here
		l.refused(pid)
	}
}

// Close implements net.Listener.
func (l *listener) Close() error { return l.close() }
