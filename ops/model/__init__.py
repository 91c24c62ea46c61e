"""The embedded model: installed from wheels, served by llama.cpp in a process of its own."""
