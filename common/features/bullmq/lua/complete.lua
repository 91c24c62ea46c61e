-- COMPLETE: complete some jobs of one queue, and lock the next one for each.
--
-- Wraps the package's script that ends one job; its arguments and answers are passed through. A
-- combined call sends the key names only once, and creates the script's functions only once, which
-- is a fifth of its time.
-- keys  1 … 11, 12, 13 the script's, without the job's own
--       14 … the hash of each job
-- args  1 now, ms   2 prefix of the queue's keys   3 field of the value   4 the final state
--       then for each job `id, value, '1' to lock the next one or '', options`
-- answers
--   the script's answer to each; an error if it failed

$FUNCTIONS
local function complete(KEYS, ARGV)
$BODY
end

local script_keys = { unpack(KEYS, 1, 11) }
script_keys[13], script_keys[14] = KEYS[12], KEYS[13]
local script_args = { '', ARGV[1], ARGV[3], '', ARGV[4], '', ARGV[2], '', '' }
local answers = {}
local at = 5
for number = 14, #KEYS do
  script_keys[12] = KEYS[number]
  script_args[1], script_args[4], script_args[6], script_args[8] = unpack(ARGV, at, at + 3)
  local ok, answer = pcall(complete, script_keys, script_args)
  if not ok then
    answer = { err = type(answer) == 'table' and answer.err or tostring(answer) }
  end
  answers[#answers + 1] = answer
  at = at + 4
end
return answers
