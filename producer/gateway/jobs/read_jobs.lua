-- Return some jobs of a list with fields of their records, as one text of JSON: a client reads that three times as fast as an
-- answer for each record. For each job there are its id, its time and the values; false stands for a field that is not there.
-- KEYS 1 a list of jobs (sorted set: id to microseconds)
-- ARGV 1 the oldest time   2 the newest   3 'older' or 'newer': from which end on   4 how many   5 what stands before an id in the key of
--      a record   6 how many fields   7… their names
set_aside_unless('zset', KEYS[1])
local read, from, to = 'ZRANGEBYSCORE', ARGV[1], ARGV[2]
if ARGV[3] == 'older' then read, from, to = 'ZREVRANGEBYSCORE', to, from end
local jobs = redis.call(read, KEYS[1], from, to, 'WITHSCORES', 'LIMIT', 0, ARGV[4])
local count = tonumber(ARGV[6])
local answer = {}
for at = 1, #jobs, 2 do
  answer[#answer + 1] = jobs[at]
  answer[#answer + 1] = jobs[at + 1]
  local values = read_derived('HMGET', ARGV[5] .. jobs[at], unpack(ARGV, 7))
  for number = 1, count do answer[#answer + 1] = values[number] or false end  -- an error has none
end
return cjson.encode(answer)
