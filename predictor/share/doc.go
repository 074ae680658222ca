// Package share gives the room of the pool's hosts to stages.
package share
