"""Work that takes the processor, in processes of its own: killable, bounded, replaceable."""
